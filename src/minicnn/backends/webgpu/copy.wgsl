// Copies bytes, in whole words of the target: each thread has one, so that arrays may begin anywhere. Arguments: first
// bytes of source and target, their number, and that of the source, which is repeated; none for zeros. Then the step's
// row, if there is a cursor.
@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, 2>;
//memories
@compute @workgroup_size(256)
fn kernel(@builtin(global_invocation_id) id: vec3<u32>, @builtin(num_workgroups) count: vec3<u32>) {
    let n = arguments[0][2];
    let period = max(arguments[0][3], 1u);
    //row
    let to = arguments[0][1] + row * n;
    let word = to / 4u + id.x + id.y * count.x * 256u;
    if (word * 4u >= to + n) { return; }
    let at = word * 4u - to;  // may wrap around, where the word begins before the target does
    let begin = arguments[0][0] + at % period;
    if (word * 4u >= to && at + 4u <= n && begin % 4u == 0u && at % period + 4u <= period) {
        m1[word] = m0[begin / 4u];
        return;
    }
    var bits = m1[word];
    for (var k = 0u; k < 4u; k++) {
        if (at + k < n) {
            let source = arguments[0][0] + (at + k) % period;
            let value = select((m0[source / 4u] >> (source % 4u * 8u)) & 255u, 0u, arguments[0][3] == 0u);
            bits = (bits & ~(255u << (k * 8u))) | (value << (k * 8u));
        }
    }
    m1[word] = bits;
}
