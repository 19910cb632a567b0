// Functions of float32 in 32-bit arithmetic, the same on every adapter as far as its sums and products are; NaN goes
// through. WGSL promises less of its own exp, log and pow, and has no expm1, log1p, erf, erfc.
//
// WGSL lets a compiler assume that there is no NaN, so that NaN may equal itself, and a comparison with a choice by it
// may become min or max, which lose NaN. So NaN is told by its bits everywhere, and passed on as bits.

fn of_bits(bits: u32) -> f32 { return bitcast<f32>(bits); }  // a number that WGSL cannot write: infinity, NaN

fn is_nan(x: f32) -> bool { return (bitcast<u32>(x) & 2147483647u) > 2139095040u; }

// NaN if x is, and else a result.
fn passed(x: f32, result: f32) -> f32 {
    return bitcast<f32>(select(bitcast<u32>(result), bitcast<u32>(x), is_nan(x)));
}

fn less_(a: f32, b: f32) -> bool { return a < b && !is_nan(a) && !is_nan(b); }

fn less_equal_(a: f32, b: f32) -> bool { return a <= b && !is_nan(a) && !is_nan(b); }

fn equal_(a: f32, b: f32) -> bool { return a == b && !is_nan(a) && !is_nan(b); }

fn maximum_(a: f32, b: f32) -> f32 { return passed(a, passed(b, max(a, b))); }

fn minimum_(a: f32, b: f32) -> f32 { return passed(a, passed(b, min(a, b))); }

// 0 x: NaN of what is not finite, by which a step is told that overflowed; a compiler may say that it is 0.
fn zero_times(x: f32) -> f32 {
    return of_bits(select(bitcast<u32>(x) & 2147483648u, 2143289344u, (bitcast<u32>(x) & 2139095040u) == 2139095040u));
}

fn abs_(x: f32) -> f32 { return abs(x); }

fn floor_(x: f32) -> f32 { return passed(x, floor(x)); }

fn sqrt_(x: f32) -> f32 { return passed(x, select(sqrt(x), of_bits(2143289344u), x < 0.0)); }

fn sign_(x: f32) -> f32 { return passed(x, select(select(0.0, -1.0, x < 0.0), 1.0, x > 0.0)); }

fn sign_i32(x: i32) -> i32 { return sign(x); }

fn sign_u32(x: u32) -> u32 { return min(x, 1u); }

fn power_u32(x: u32, n: u32) -> u32 {
    var result = 1u;
    var factor = x;
    for (var k = n; k > 0u; k = k >> 1u) {
        if ((k & 1u) == 1u) { result = result * factor; }
        factor = factor * factor;
    }
    return result;
}

fn power_i32(x: i32, n: i32) -> i32 { return bitcast<i32>(power_u32(bitcast<u32>(x), u32(max(n, 0)))); }

fn two_to(n: i32) -> f32 { return bitcast<f32>(u32(n + 127) << 23u); }

// exp(n ln 2 + r), |r| <= ln 2 / 2: the Taylor series of exp(r), times 2^n in two factors that both exist.
fn exp_(x: f32) -> f32 {
    let y = clamp(x, -104.0, 89.0);
    let n = floor(y * 1.4426950408889634 + 0.5);
    let r = (y - n * 0.693359375) + n * 0.00021219444005469057;
    let p = 1.0 + r * (1.0 + r * (0.5 + r * (0.16666666666666666 + r * (0.041666666666666664
        + r * (0.008333333333333333 + r * (0.001388888888888889 + r * 0.0001984126984126984))))));
    let k = i32(n);
    let half = k / 2;
    return passed(x, p * two_to(half) * two_to(k - half));
}

fn expm1_(x: f32) -> f32 {
    let p = x + x * x * (0.5 + x * (0.16666666666666666 + x * (0.041666666666666664 + x * (0.008333333333333333
        + x * (0.001388888888888889 + x * (0.0001984126984126984 + x * 0.0000248015873015873))))));
    return passed(x, select(exp_(x) - 1.0, p, abs(x) < 0.35));
}

// log((1 + s) / (1 - s)) = 2 (s + s^3 / 3 + s^5 / 5 ...)
fn log_of_ratio(s: f32) -> f32 {
    let z = s * s;
    return 2.0 * s + 2.0 * s * z * (0.3333333333333333 + z * (0.2 + z * (0.14285714285714285
        + z * (0.1111111111111111 + z * 0.09090909090909091))));
}

fn log_(x: f32) -> f32 {
    let small = x < 1.1754943508222875e-38;
    let bits = bitcast<u32>(select(x, x * 16777216.0, small));
    // m from sqrt(1/2) to sqrt(2), of which the place of the bits of sqrt(1/2) is taken.
    let shifted = bits - 1060439283u;
    let e = f32(bitcast<i32>(shifted) >> 23u) - select(0.0, 24.0, small);
    let f = bitcast<f32>((shifted & 8388607u) + 1060439283u) - 1.0;
    let y = e * 0.693359375 + (log_of_ratio(f / (2.0 + f)) - e * 0.00021219444005469057);
    let far = select(select(of_bits(2143289344u), x, x > 0.0), of_bits(4286578688u), x == 0.0);
    return passed(x, select(far, y, x > 0.0 && x <= 3.4028234663852886e+38));
}

fn log1p_(x: f32) -> f32 {
    return passed(x, select(log_(1.0 + x), log_of_ratio(x / (2.0 + x)), x > -0.29 && x < 0.41));
}

fn tanh_(x: f32) -> f32 {
    let t = expm1_(2.0 * min(abs(x), 10.0));
    let y = t / (t + 2.0);
    return passed(x, select(y, -y, x < 0.0));
}

// erfc(x) from 0.4 on: exp(-x^2) t p(t) with t = 1 / (1 + x / 2), p fitted to Python's erfc; exp of x^2 in two parts.
fn erfc_far(x: f32) -> f32 {
    let y = min(x, 10.2);
    let t = 1.0 / (1.0 + 0.5 * y);
    let u = t - 0.49863388;
    let p = 0.5098536610603333 + u * (0.6856343150138855 + u * (0.5583439469337463 + u * (0.14671076834201813 + u *
        (-0.17130926251411438 + u * (-0.10459825396537781 + u * (0.09668604284524918 + u * (0.056294962763786316
        + u * (-0.06643842905759811 + u * (-0.021304035559296608)))))))));
    let high = bitcast<f32>(bitcast<u32>(y) & 4294963200u);
    return exp_(-high * high) * exp_((high - y) * (high + y)) * (t * p);
}

// 2 / sqrt(pi) (x - x^3 / 3 + x^5 / 10 - x^7 / 42 ...), |x| < 1
fn erf_near(x: f32) -> f32 {
    let z = x * x;
    return x * 1.1283791670955126 * (1.0 + z * (-0.3333333333333333 + z * (0.1 + z * (-0.023809523809523808
        + z * (0.004629629629629629 + z * (-0.0007575757575757576 + z * (0.00010683760683760684
        + z * (-0.000013227513227513228 + z * (0.0000014589169000933706 + z * -0.00000014503852223150468)))))))));
}

fn erf_(x: f32) -> f32 {
    let far = 1.0 - erfc_far(max(abs(x), 0.4));
    return passed(x, select(select(far, -far, x < 0.0), erf_near(x), abs(x) < 0.9));
}

fn erfc_(x: f32) -> f32 {
    let far = erfc_far(max(abs(x), 0.4));
    return passed(x, select(select(far, 2.0 - far, x < 0.0), 1.0 - erf_near(x), abs(x) < 0.4));
}

fn power_(x: f32, y: f32) -> f32 {
    let odd = floor(y * 0.5) * 2.0 != y;
    let whole = floor(y) == y;
    let size = exp_(y * log_(abs(x)));
    let signed = select(select(size, -size, odd), of_bits(2143289344u), !whole && x != -of_bits(2139095040u));
    let result = passed(x, passed(y, select(size, signed, x < 0.0)));
    let one = y == 0.0 || x == 1.0 || (x == -1.0 && (bitcast<u32>(y) & 2147483647u) == 2139095040u);
    return select(select(result, 1.0, one), x * x * select(1.0, x, y == 3.0), y == 2.0 || y == 3.0);
}

// The nearest float16, ties to even; WGSL's own rounds as an adapter likes, and has no infinity.
fn float16_bits(x: f32) -> u32 {
    let sign = (bitcast<u32>(x) >> 16u) & 32768u;
    let bits = bitcast<u32>(x) & 2147483647u;
    let a = bits - 939524096u;  // of an exponent whose bias is 15
    let normal = min((a + 4095u + ((a >> 13u) & 1u)) >> 13u, 31744u);
    let finite = select(normal, u32(round(bitcast<f32>(bits) * 16777216.0)), bits < 947912704u);
    return sign | select(finite, 32256u, is_nan(x));
}

// The high and the low word of a product.
fn wide_product(a: u32, b: u32) -> vec2<u32> {
    let middle = (a & 65535u) * (b >> 16u) + (((a & 65535u) * (b & 65535u)) >> 16u);
    let carry = (a >> 16u) * (b & 65535u) + (middle & 65535u);
    return vec2<u32>((a >> 16u) * (b >> 16u) + (middle >> 16u) + (carry >> 16u), a * b);
}

// Element i of Philox4x32-10 with the counter (i / 4, 0, step, stream), a multiple of 2^-24 from 0 to 1.
fn random_uniform_(i: u32, step: u32, stream: u32, key0: u32, key1: u32) -> f32 {
    var c = vec4<u32>(i / 4u, 0u, step, stream);
    var k = vec2<u32>(key0, key1);
    for (var turn = 0; turn < 10; turn++) {
        let first = wide_product(c.x, 0xD2511F53u);
        let second = wide_product(c.z, 0xCD9E8D57u);
        c = vec4<u32>(second.x ^ c.y ^ k.x, second.y, first.x ^ c.w ^ k.y, first.y);
        k = k + vec2<u32>(0x9E3779B9u, 0xBB67AE85u);
    }
    return f32(c[i % 4u] >> 8u) * 0.000000059604644775390625;
}
