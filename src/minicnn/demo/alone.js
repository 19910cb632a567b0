// What the server would answer, computed here: `run` above is the model's Program with the gradient of a score.
const KINDS = {float32: Float32Array, int32: Int32Array, uint8: Uint8Array, bool: Uint8Array};
const bytesOf = text => Uint8Array.from(atob(text), letter => letter.charCodeAt(0));
const weights = Object.fromEntries(Object.entries(facts.weights).map(
  ([name, [kind, text]]) => [name, new KINDS[kind](bytesOf(text).buffer)]));

function computed(pixels, target, layer) {
  const {height, width, channels} = facts, x = new KINDS[facts.dtype](pixels.length);
  for (let i = 0; i < pixels.length; i++) {
    const at = facts.first ? (i % channels) * height * width + Math.floor(i / channels) : i;
    x[at] = facts.scale === 1 ? pixels[i] : Math.fround(pixels[i] * facts.scale);
  }
  const results = run({...weights, [facts.input]: x, target: Int32Array.of(target ?? -1)});
  const answer = {probabilities: shares(results.outputs), target: results.chosen[0]};
  if (!layer) return answer;
  const [high, wide, count] = facts.maps[layer];
  const of = name => (y, x, k) => results[`${name} ${layer}`][facts.first ? (k * high + y) * wide + x : (y * wide + x) * count + k];
  const features = of('features'), slopes = of('gradient');
  return {...answer, layer, overlay: overlay(pixels, cam(features, slopes, high, wide, count, layer), high, wide),
    ...feature_maps(features, high, wide, count, layer)};
}

// Scores as probabilities: what are such already are taken as they are.
function shares(scores) {
  const all = Array.from(scores), sum = all.reduce((a, b) => a + b, 0);
  if (all.length === 1) {
    const positive = all[0] >= 0 && all[0] <= 1 ? all[0] : 1 / (1 + Math.exp(-all[0]));
    return [1 - positive, positive];
  }
  if (all.every(s => s >= 0) && Math.abs(sum - 1) < 1e-2) return all;
  const largest = Math.max(...all), powers = all.map(s => Math.exp(s - largest)), whole = powers.reduce((a, b) => a + b, 0);
  return powers.map(p => p / whole);
}

// Grad-CAM: feature maps, each times the mean of the score's derivatives by it.
function cam(features, slopes, high, wide, count, layer) {
  const map = new Float64Array(high * wide), rectified = facts.rectified.includes(layer);
  for (let k = 0; k < count; k++) {
    let mean = 0;
    for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++) mean += slopes(y, x, k) / (high * wide);
    for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++)
      map[y * wide + x] += mean * (rectified ? Math.max(features(y, x, k), 0) : features(y, x, k));
  }
  return map.map(v => Math.max(v, 0));
}

// The image in grey with the map over it, dark red to yellow, linear between the middles of the map's elements.
function overlay(pixels, map, high, wide) {
  const {height, width, channels} = facts, sample = (y, x) => {
    const place = (at, old, now) => Math.min(Math.max((at + 0.5) * old / now - 0.5, 0), old - 1);
    const v = place(y, high, height), u = place(x, wide, width), top = Math.floor(v), left = Math.floor(u);
    const bottom = Math.min(top + 1, high - 1), right = Math.min(left + 1, wide - 1);
    const row = r => map[r * wide + left] * (1 - u + left) + map[r * wide + right] * (u - left);
    return row(top) * (1 - v + top) + row(bottom) * (v - top);
  };
  let most = Number.MIN_VALUE;
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) most = Math.max(most, sample(y, x));
  return drawn_as(height, width, Math.max(1, Math.floor(160 / Math.max(height, width))), (y, x) => {
    const m = sample(y, x) / most, at = (y * width + x) * channels;
    let grey = 0;
    for (let c = 0; c < channels; c++) grey += pixels[at + c] / channels;
    return [Math.min(1, 0.35 + 1.3 * m), Math.min(Math.max(1.7 * m - 0.5, 0), 1), 0.15].map(
      part => grey * (1 - 0.75 * m) + part * 255 * 0.75 * m);
  });
}

// The first maps of a layer side by side: orange above zero, white at zero, blue below.
function feature_maps(features, high, wide, count, layer) {
  const shown = Math.min(count, facts.most), columns = Math.ceil(Math.sqrt(shown)), rows = Math.ceil(shown / columns);
  let largest = 0;
  for (let k = 0; k < shown; k++) for (let y = 0; y < high; y++) for (let x = 0; x < wide; x++)
    largest = Math.max(largest, Math.abs(features(y, x, k)));
  const tall = rows * (high + 1) - 1, broad = columns * (wide + 1) - 1;
  const maps = drawn_as(tall, broad, Math.max(1, Math.floor(384 / broad)), (y, x) => {
    const k = Math.floor(y / (high + 1)) * columns + Math.floor(x / (wide + 1));
    if (y % (high + 1) === high || x % (wide + 1) === wide || k >= shown) return facts.gap;
    const share = features(y % (high + 1), x % (wide + 1), k) / (largest || 1);
    return facts[share > 0 ? 'above' : 'below'].map(end => 255 + (end - 255) * Math.abs(share));
  });
  const kept = count > shown ? ` (${count} in all)` : '';
  return {maps, caption: `${layer}: ${shown} maps of ${high} x ${wide}, blue -${largest.toPrecision(3)} to orange ${largest.toPrecision(3)}${kept}`};
}

function drawn_as(height, width, factor, colour) {
  const canvas = document.createElement('canvas'), pen = canvas.getContext('2d');
  canvas.width = width * factor;
  canvas.height = height * factor;
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
    pen.fillStyle = `rgb(${colour(y, x).map(Math.round).join()})`;
    pen.fillRect(x * factor, y * factor, factor, factor);
  }
  return canvas.toDataURL('image/png').split(',')[1];
}
