// Products by warpgroups on the host, from their descriptors: what "Asynchronous Warpgroup Level Matrix Instructions" in the PTX manual
// says of layouts, swizzles and of what has to be waited for. A product may read its operands at any time between its start and its end,
// so they are read at both times and must be the same; its sums are NaN in between.
#pragma once

constexpr unsigned WINDOW = 1024 + 384;  // where shared memory begins, as a descriptor sees it: a multiple of 128
static inline uint32_t shared_offset(const void* p) { return uint32_t((const unsigned char*)p - dynamic_memory) + WINDOW; }
static inline int uniform(int x) { return x; }

// The sums of products that nobody has waited for, of N / 8 fragments; the groups they are in; what a thread has read for each of them.
struct Chain {
  float* to;
  int size, group;
  float value[128];
};
struct Started {
  int group, elements;
  uint64_t descriptors[2];
  bool across[2];
  uint16_t share[40];
};
struct OfThread {
  Chain chains[4];
  Started started[64];
  int chain_count, started_count, group;
  bool begun;
};
static OfThread own_products[1024];
struct Warpgroup {
  Barrier all;
  uint16_t a[64 * 16], b[256 * 16];
};
static Warpgroup warpgroups[8];

UNCHECKED static void forget_products(unsigned count) {
  for (unsigned i = 0; i < count; i++) own_products[i].chain_count = own_products[i].started_count = own_products[i].group = 0;
  for (unsigned i = 0; i < count; i++) own_products[i].begun = false;
  for (unsigned i = 0; i < count; i += 128) warpgroups[i / 128].all = {count - i < 128 ? int(count - i) : 128, 0, 0};
}

// Where row (or column) `i`, term k of an operand is. Of 16-bit elements, eight are 16 bytes, the unit of canonical layouts:
//   terms are neighbours:        ((8, m), (T, 2k)) : ((RUNS * T, stride), (1, T))
//   across, rows are neighbours: ((T, RUNS, m), (8, k)) : ((1, T, leading), (RUNS * T, stride))
static inline const uint16_t* element(uint64_t descriptor, bool across, int i, int k) {
  const unsigned start = (descriptor & 0x3fff) << 4, leading = (descriptor >> 16 & 0x3fff) << 4, stride = (descriptor >> 32 & 0x3fff) << 4;
  const unsigned mode = descriptor >> 62, runs = mode == 0 ? 1 : 16 >> mode;
  if (mode == 0 || (descriptor >> 49 & 7)) fail("Operands of warpgroups are swizzled from a multiple of 1024 bytes on", "names", nullptr, mode);
  unsigned address = start + (across ? i % (runs * 8) * 2 + i / (runs * 8) * leading + k % 8 * runs * 16 + k / 8 * stride
                                     : i % 8 * runs * 16 + i / 8 * stride + k * 2);
  address ^= (address >> 7 & (runs - 1)) << 4;
  return (const uint16_t*)(dynamic_memory + int(address - WINDOW));
}
static inline uint16_t read_element(uint64_t descriptor, bool across, int i, int k) {
  const uint16_t* place = element(descriptor, across, i, k);
  const uint16_t found = *place;
  const Landing& last = landings[((const unsigned char*)place - dynamic_memory) / 16];
  if (last.thread && copies[last.thread - 1].shown <= last.shown)
    fail("Who copies to shared memory shows it to warpgroups before the barrier", "reads", place, 2);
  return found;
}
// A thread's share of both operands of a product, of which its warpgroup reads everything.
template <class F> static inline void each_of_share(const Started& s, F f) {
  for (int k = 0, at = 0; k < 2; k++)
    for (int e = threadIdx.x % 128; e < (k ? s.elements : 64) * 16; e += 128, at++)
      f(k, e, at, read_element(s.descriptors[k], s.across[k], e / 16, e % 16));
}

static inline void show_to_warpgroups() { copies[threadIdx.x].shown++; }
static inline void begin_products() { own_products[threadIdx.x].begun = true; }
static inline void close_products() { own_products[threadIdx.x].group++, own_products[threadIdx.x].begun = false; }
template <int N> static inline void wait_for_products() {
  OfThread& own = own_products[threadIdx.x];
  int kept = 0;
  for (int k = 0; k < own.started_count; k++) {
    const Started& s = own.started[k];
    if (s.group < own.group - N)
      each_of_share(s, [&](int, int, int at, uint16_t found) {
        if (found != s.share[at])
          fail("Operands of a product by a warpgroup stay as they are until it has been waited for", "reads", nullptr, 2);
      });
    else if (kept != k) own.started[kept++] = s;
    else kept++;
  }
  own.started_count = kept, kept = 0;
  for (int k = 0; k < own.chain_count; k++) {
    Chain& chain = own.chains[k];
    if (chain.group < own.group - N) memcpy(chain.to, chain.value, chain.size * sizeof(float));
    else if (kept != k) own.chains[kept++] = chain;
    else kept++;
  }
  own.chain_count = kept;
}
template <int M, int N> static inline void hold(float (&)[M][N][4]) {}

struct Bfloat16;
struct Float16;
static inline float sum_of_16(const Bfloat16*, float c, const uint32_t* x, const uint32_t* y) {
  return truncated_sum<16, AT_ONCE, -126>(c, x, y, from_bfloat16);
}
static inline float sum_of_16(const Float16*, float c, const uint32_t* x, const uint32_t* y) {
  return truncated_sum<16, AT_ONCE, -14>(c, x, y, from_float16);
}
// Sums of a thread: those of rows 16 * warp + lane / 4 and 8 below, columns 8 * n + lane % 4 * 2 and the next.
template <bool TA, bool TB, class P, int N> static inline void start_product(P, float (&c)[N][4], uint64_t a, uint64_t b) {
  OfThread& own = own_products[threadIdx.x];
  Warpgroup& all = warpgroups[threadIdx.x / 128];
  if (!own.begun) fail("Products by warpgroups follow begin_products", "starts", nullptr, 1);
  if (own.started_count == 64 || own.chain_count == 4) fail("Products by warpgroups are waited for", "starts", nullptr, 1);
  Started& s = own.started[own.started_count++] = {own.group, N * 8, {a, b}, {TA, TB}};
  each_of_share(s, [&](int k, int e, int at, uint16_t found) { (k ? all.b : all.a)[e] = s.share[at] = found; });
  Chain* chain = own.chains;
  while (chain < own.chains + own.chain_count && chain->to != &c[0][0]) chain++;
  if (chain == own.chains + own.chain_count) {
    own.chain_count++, chain->to = &c[0][0], chain->size = N * 4;
    memcpy(chain->value, c, sizeof(c)), memset(c, 0xFF, sizeof(c));
  }
  chain->group = own.group;
  all.all.wait();
  const int warp = threadIdx.x / 32 % 4, lane = threadIdx.x % 32;
  for (int n = 0; n < N; n++)
    for (int r = 0; r < 4; r++) {
      uint32_t x[16], y[16];
      for (int k = 0; k < 16; k++)
        x[k] = all.a[(warp * 16 + lane / 4 + r / 2 * 8) * 16 + k], y[k] = all.b[(n * 8 + lane % 4 * 2 + r % 2) * 16 + k];
      chain->value[n * 4 + r] = sum_of_16((const P*)nullptr, chain->value[n * 4 + r], x, y);
    }
  all.all.wait();
}
