// Adds a number to the cursor, whose word is the first argument.
@group(0) @binding(0) var<uniform> arguments: array<vec4<u32>, 1>;
//memories
@compute @workgroup_size(1)
fn kernel() { m0[arguments[0][0]] += arguments[0][1]; }
