// Trains the model of an exported page in Node: FOLDER of the page, FOLDER of npm's packages, number of steps.
import { readFile } from "node:fs/promises";
import { pathToFileURL } from "node:url";

const [folder, packages, steps] = process.argv.slice(2);
const ort = await import(pathToFileURL(`${packages}/onnxruntime-web/dist/ort.node.min.mjs`));
const { open } = await import(pathToFileURL(`${folder}/trainer.js`));
const read = async (name) => Uint8Array.from(await readFile(`${folder}/${name}`)).buffer;
const trainer = await open(ort, read);
const before = await trainer.accuracy();
const losses = [];
const begun = performance.now();
for (let i = 0; i < Number(steps); i++) losses.push(await trainer.step());
const milliseconds = (performance.now() - begun) / losses.length;
console.log(JSON.stringify({ before, after: await trainer.accuracy(), losses, milliseconds, memory: process.memoryUsage() }));
