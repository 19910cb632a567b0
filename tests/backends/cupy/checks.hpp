// The rules of memory that a kernel on the host is held to: g++ calls a function at each access (-fsanitize=kernel-address, whose
// runtime this is). An access lies within an argument, the shared memory that the launch asked for, or what the text declares; it
// begins at a multiple of its size; and between two barriers no thread reads what another one writes.
#pragma once

struct Argument {
  const char* first;
  size_t size;
};
static Argument given[1024];
static int given_count;
static size_t shared_size;
static unsigned blocks_begun;  // of all launches
static char wrong[300];
extern "C" __attribute__((visibility("hidden"))) char __ehdr_start, _end;  // of what is loaded, stacks included

// Who has touched a byte of shared memory last. `when` counts the barriers of the block, and those of the warp.
struct Touch {
  unsigned thread, block, round, warp_round;
  UNCHECKED INLINED static Touch now() {
    return {threadIdx.x + 1, blocks_begun, unsigned(everyone.round), unsigned(warps[threadIdx.x / 32].all.round)};
  }
  // Whether nothing says that it came before another one.
  UNCHECKED INLINED bool beside(const Touch& other) const {
    if (!thread || thread == other.thread || block != other.block || round != other.round) return false;
    return (thread - 1) / 32 != (other.thread - 1) / 32 || warp_round == other.warp_round;
  }
};
struct Byte {
  Touch written, read, read_before;
};
static Byte shadow[sizeof(dynamic_memory)];

UNCHECKED static void fail(const char* rule, const char* what, const void* address, size_t n) {
  const char* p = (const char*)address;
  int k = -1;
  for (int i = 0; i < given_count; i++)
    if (given[i].first <= p && (k < 0 || given[i].first > given[k].first)) k = i;
  const bool shared = p >= (char*)dynamic_memory && p < (char*)dynamic_memory + sizeof(dynamic_memory);
  snprintf(wrong, sizeof(wrong), "%s. Received: thread %u of block %u %s %zu bytes at byte %td of %s %d, which has %zu.", rule,
           threadIdx.x, blockIdx.x, what, n, p - (shared ? (char*)dynamic_memory : k < 0 ? nullptr : given[k].first),
           shared ? "shared memory" : "argument", shared ? 0 : k, shared ? shared_size : k < 0 ? 0 : given[k].size);
  _longjmp(outside, 1);
}

UNCHECKED static bool within_arguments(const char* p, size_t n) {
  static int last;
  if (p >= given[last].first && p + n <= given[last].first + given[last].size) return true;
  for (last = 0; last < given_count; last++)
    if (p >= given[last].first && p + n <= given[last].first + given[last].size) return true;
  last = 0;
  return false;
}

UNCHECKED INLINED static void check(const void* address, size_t n, bool writes, bool aligned) {
  const char* p = (const char*)address;
  const char* what = writes ? "writes" : "reads";
  if (p >= (char*)dynamic_memory && p < (char*)dynamic_memory + sizeof(dynamic_memory)) {
    const size_t at = p - (char*)dynamic_memory;
    if (at + n > shared_size) return fail("A kernel keeps to the shared memory that it asks for", what, p, n);
    const Touch now = Touch::now();
    for (size_t i = at; i < at + n; i++) {
      Byte& byte = shadow[i];
      const bool races = writes ? byte.read.beside(now) || byte.read_before.beside(now) : byte.written.beside(now);
      if (races) return fail("A barrier lies between a thread that writes and another that reads", what, p, n);
      if (writes) byte.written = now;
      else if (byte.read.thread == now.thread) byte.read = now;
      else byte.read_before = byte.read, byte.read = now;
    }
  } else if (!(p >= &__ehdr_start && p < &_end) && !within_arguments(p, n)) {
    return fail("A kernel keeps to its arguments", what, p, n);
  }
  if (aligned && uintptr_t(p) % n) fail("An access begins at a multiple of its size", what, p, n);
}

extern "C" {
#define ACCESS(n) \
  UNCHECKED void __asan_load##n##_noabort(void* p) { check(p, n, false, true); } \
  UNCHECKED void __asan_store##n##_noabort(void* p) { check(p, n, true, true); }
ACCESS(1) ACCESS(2) ACCESS(4) ACCESS(8) ACCESS(16)
UNCHECKED void __asan_loadN_noabort(void* p, long n) { check(p, n, false, false); }
UNCHECKED void __asan_storeN_noabort(void* p, long n) { check(p, n, true, false); }
UNCHECKED void __asan_handle_no_return() {}
}
