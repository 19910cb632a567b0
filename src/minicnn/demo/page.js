'use strict';
const facts = JSON.parse(document.getElementById('data').textContent);
const at = id => document.getElementById(id);
const pad = at('pad'), seen = at('seen'), SIDE = 280;  // pixels of the pad's longer side
const scale = SIDE / Math.max(facts.width, facts.height);
pad.width = Math.round(facts.width * scale);
pad.height = Math.round(facts.height * scale);
seen.width = facts.width;
seen.height = facts.height;
document.documentElement.style.setProperty('--shape', `${facts.width} / ${facts.height}`);
const ink = pad.getContext('2d', {willReadFrequently: true});
const small = seen.getContext('2d', {willReadFrequently: true});
let target = null, asking = false, again = false, pen = null, drawn = false;

// The classes, of which the likeliest come first where there are many.
const rows = facts.names.map((name, number) => {
  const row = document.createElement('button'), parts = ['name', 'bar', 'share'].map(kind => {
    const part = document.createElement('span');
    part.className = kind === 'bar' ? '' : kind;
    row.append(part);
    return part;
  });
  const bar = document.createElement('i');
  parts[1].append(bar);
  parts[0].textContent = parts[0].title = name;
  parts[2].textContent = '–';
  row.setAttribute('aria-pressed', 'false');
  row.addEventListener('click', () => { target = target === number ? null : number; ask(); });
  at('classes').append(row);
  return {row, bar, share: parts[2]};
});

function clear() {
  ink.fillStyle = '#000';
  ink.fillRect(0, 0, pad.width, pad.height);
  drawn = false;
  ask();
}

function dot(x, y, from) {
  ink.strokeStyle = '#fff';
  ink.lineWidth = Number(at('pen').value) * pad.width / 112;
  ink.lineCap = ink.lineJoin = 'round';
  ink.beginPath();
  ink.moveTo(...(from || [x, y]));
  ink.lineTo(x, y);
  ink.stroke();
  drawn = true;
  ask();
}

// The mean of each cell of the pad: what the browser's own scaling takes for it differs from one to the next.
function pixels() {
  small.imageSmoothingEnabled = true;
  const big = ink.getImageData(0, 0, pad.width, pad.height).data, {width, height, channels} = facts;
  const out = new Uint8Array(width * height * channels), shown = small.createImageData(width, height);
  for (let y = 0; y < height; y++) for (let x = 0; x < width; x++) {
    const left = Math.floor(x * pad.width / width), right = Math.max(left + 1, Math.floor((x + 1) * pad.width / width));
    const top = Math.floor(y * pad.height / height);
    const bottom = Math.max(top + 1, Math.floor((y + 1) * pad.height / height));
    const sum = [0, 0, 0], count = (right - left) * (bottom - top);
    for (let v = top; v < bottom; v++) for (let u = left; u < right; u++)
      for (let c = 0; c < 3; c++) sum[c] += big[4 * (v * pad.width + u) + c];
    const mean = sum.map(s => s / count), grey = 0.299 * mean[0] + 0.587 * mean[1] + 0.114 * mean[2];
    const i = y * width + x;
    for (let c = 0; c < channels; c++) out[i * channels + c] = Math.round(channels === 1 ? grey : mean[c]);
    for (let c = 0; c < 3; c++) shown.data[4 * i + c] = channels === 1 ? grey : mean[c];
    shown.data[4 * i + 3] = 255;
  }
  small.putImageData(shown, 0, 0);
  return out;
}

async function asked(bytes, target, layer) {
  let text = '';
  for (let i = 0; i < bytes.length; i += 8192) text += String.fromCharCode(...bytes.subarray(i, i + 8192));
  const answer = await fetch('predict', {method: 'POST', headers: {'Content-Type': 'application/json'},
    body: JSON.stringify({pixels: btoa(text), target, layer})});
  return answer.json();
}

// One question at a time; what is drawn meanwhile is asked about next.
async function ask() {
  if (asking) { again = true; return; }
  asking = true;
  try {
    do {
      again = false;
      const layer = at('layer') ? at('layer').value : null;
      show(typeof computed === 'function' ? computed(pixels(), target, layer) : await asked(pixels(), target, layer));
    } while (again);
    at('wrong').textContent = '';
  } catch (error) {
    at('wrong').textContent = 'The model does not answer: is `minicnn demo` still running?';
  }
  asking = false;
}

function show(found) {
  if (found.wrong) throw new Error(found.wrong);
  const best = found.probabilities.indexOf(Math.max(...found.probabilities));
  at('best').textContent = drawn ? `${facts.names[best]} ${(100 * found.probabilities[best]).toFixed(0)} %` : '–';
  rows.forEach(({row, bar, share}, number) => {
    const p = found.probabilities[number];
    bar.style.width = `${100 * p}%`;
    share.textContent = `${(100 * p).toFixed(1)} %`;
    row.setAttribute('aria-pressed', String(number === target));
    row.style.order = String(-Math.round(1e6 * p));
  });
  if (!found.layer) return;
  at('target').textContent = facts.names[found.target] ?? '';
  at('overlay').src = 'data:image/png;base64,' + found.overlay;
  at('maps').src = 'data:image/png;base64,' + found.maps;
  at('caption').textContent = found.caption;
}

function place(event) {
  const box = pad.getBoundingClientRect();
  return [(event.clientX - box.left) * pad.width / box.width, (event.clientY - box.top) * pad.height / box.height];
}

pad.addEventListener('pointerdown', event => {
  pad.setPointerCapture(event.pointerId);
  pen = place(event);
  dot(...pen);
});
pad.addEventListener('pointermove', event => {
  if (!pen) return;
  const next = place(event);
  dot(...next, pen);
  pen = next;
});
for (const kind of ['pointerup', 'pointercancel']) pad.addEventListener(kind, () => { pen = null; });

const cursor = [pad.width / 2, pad.height / 4];
let down = false;
pad.addEventListener('keydown', event => {
  const step = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
  if (!step && event.key !== ' ') return;
  event.preventDefault();
  const from = [...cursor];
  if (step) step.forEach((d, i) => {
    cursor[i] = Math.min(Math.max(cursor[i] + d * 8, 0), [pad.width, pad.height][i]);
  });
  else down = !down;
  if (down) dot(...cursor, from);
  at('pad').setAttribute('aria-label', `Drawing pad: pen ${down ? 'down' : 'up'} at ${cursor.map(Math.round).join(', ')}`);
});

at('clear').addEventListener('click', clear);
if (at('layer')) {
  at('layer').value = facts.layers[facts.layers.length - 1];
  at('layer').addEventListener('change', ask);
}
at('file').addEventListener('change', event => {
  const [file] = event.target.files;
  if (!file) return;
  const reader = new FileReader(), image = new Image();
  reader.onload = () => { image.src = reader.result; };
  image.onload = () => {
    const fit = Math.min(pad.width / image.width, pad.height / image.height);
    ink.fillStyle = '#000';
    ink.fillRect(0, 0, pad.width, pad.height);
    ink.drawImage(image, (pad.width - image.width * fit) / 2, (pad.height - image.height * fit) / 2,
      image.width * fit, image.height * fit);
    drawn = true;
    ask();
  };
  reader.readAsDataURL(file);
});
clear();
