// Trains an exported model: three ONNX files and a file of samples, in a browser tab or in Node.

// ort: onnxruntime-web. read: from the name of a file to a promise of its ArrayBuffer.
export async function open(ort, read) {
  ort.env.wasm.numThreads = 1; // more take a page that its server declares to be isolated
  const about = JSON.parse(new TextDecoder().decode(await read("model.json")));
  const bytes = new Uint8Array(await read("samples.bin"));
  const session = async (name) =>
    ort.InferenceSession.create(new Uint8Array(await read(name)), { executionProviders: ["wasm"] });
  const [start, train, predict] = await Promise.all(["state.onnx", "train.onnx", "predict.onnx"].map(session));
  const size = about.shape.reduce((a, b) => a * b, 1);
  const count = about.train + about.test;
  const weights = predict.inputNames.filter((name) => name !== "x");
  let state = await start.run({});
  let order = [];

  const images = (pixels) => {
    const data = about.dtype === "float32" ? Float32Array.from(pixels, (p) => p / 255) : Uint8Array.from(pixels);
    return new ort.Tensor(about.dtype, data, [pixels.length / size, ...about.shape]);
  };
  const pixelsOf = (rows) => {
    const pixels = new Uint8Array(rows.length * size);
    rows.forEach((row, i) => pixels.set(bytes.subarray(row * size, (row + 1) * size), i * size));
    return pixels;
  };
  const labelOf = (row) => bytes[count * size + row];

  // The scores of each class for images of bytes, one array an image.
  async function scores(pixels) {
    const given = { x: images(pixels) };
    for (const name of weights) given[name] = state[name];
    const made = (await predict.run(given))[predict.outputNames[0]].data;
    return Array.from({ length: pixels.length / size }, (_, i) => made.slice(i * about.classes, (i + 1) * about.classes));
  }

  // One training step on the next batch; returns its mean loss.
  async function step() {
    if (order.length < about.batch) {
      order = Array.from({ length: about.train }, (_, row) => row);
      for (let i = order.length - 1; i > 0; i--) {
        const j = Math.floor(Math.random() * (i + 1));
        [order[i], order[j]] = [order[j], order[i]];
      }
    }
    const rows = order.splice(0, about.batch);
    const results = await train.run({
      ...state,
      x: images(pixelsOf(rows)),
      y: new ort.Tensor("int32", Int32Array.from(rows, labelOf), [rows.length]),
      learning_rate: new ort.Tensor("float32", [about.learning_rate], []),
    });
    for (const name of Object.keys(state)) state[name] = results["next/" + name] ?? state[name];
    return results.loss.data[0];
  }

  // The share of the test samples that are told right.
  async function accuracy() {
    const rows = Array.from({ length: about.test }, (_, i) => about.train + i);
    const found = await scores(pixelsOf(rows));
    return found.filter((s, i) => s.indexOf(Math.max(...s)) === labelOf(rows[i])).length / rows.length;
  }

  const restart = async () => { state = await start.run({}); };
  return { about, step, accuracy, scores, restart };
}
