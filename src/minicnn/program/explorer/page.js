'use strict';
// The page's data are text: all of it is put into the page as text, never as markup.
const steps = JSON.parse(document.getElementById('data').textContent);
const detail = document.getElementById('detail'), list = document.getElementById('list');
const graph = document.getElementById('graph'), search = document.getElementById('search');
const elements = new Map();
for (const element of document.querySelectorAll('[data-step]')) {
  const number = Number(element.dataset.step);
  if (!elements.has(number)) elements.set(number, []);
  elements.get(number).push(element);
}
const edges = [...document.querySelectorAll('.edge')];
const hiddenPhases = new Set();
let chosen = steps.findIndex(step => step.phase !== 'given');
if (chosen < 0) chosen = 0;
let shown = chosen;

function make(tag, text, className) {
  const element = document.createElement(tag);
  if (text) element.textContent = text;
  if (className) element.className = className;
  return element;
}

function link(text, number) {
  if (number < 0) return make('span', text + ' ', 'code');
  const button = make('button', text, 'go code');
  button.addEventListener('click', () => choose(number, true));
  return button;
}

function describe(number) {
  const step = steps[number], facts = make('dl');
  const fact = (name, ...what) => {
    const value = make('dd');
    value.append(...what);
    facts.append(make('dt', name), value);
  };
  detail.replaceChildren(make('h2', step.title, 'code'), make('p', [step.phase, step.scope].join(', '), 'soft'));
  if (step.says) detail.append(make('p', step.says));
  detail.append(facts);
  if (step.flops) {
    fact('FLOPs', step.flops);
    fact('bytes', step.moved + (step.ratio ? ', ' + step.ratio : ''));
  }
  if (step.kernel) fact('run by', step.kernel);
  if (step.reads.length) fact('reads', ...step.reads.map(([name, source]) => link(name, source)));
  if (step.read.length) fact('read by', ...step.read.map(reader => link(steps[reader].values[0].name, reader)));
  for (const value of step.values) {
    fact(step.values.length > 1 ? value.name : 'shape', make('span', value.spec, 'code'), ', ' + value.bytes);
    for (const name of value.becomes) fact('is', name);
    if (value.statistics) fact('values', value.statistics);
    if (value.picture) {
      const image = make('img');
      image.alt = image.title = value.caption;
      image.src = 'data:image/png;base64,' + value.picture;
      detail.append(image, make('p', value.caption, 'soft'));
    }
  }
}

function show(number) {
  for (const element of elements.get(shown) || []) element.classList.remove('shown');
  shown = number;
  for (const element of elements.get(number) || []) element.classList.add('shown');
  for (const edge of edges) {
    edge.classList.toggle('in', Number(edge.dataset.to) === number);
    edge.classList.toggle('out', Number(edge.dataset.from) === number);
  }
  describe(number);
}

function choose(number, focus) {
  for (const element of document.querySelectorAll('.chosen,.source,.reader'))
    element.classList.remove('chosen', 'source', 'reader');
  for (const [element] of elements.values()) element.tabIndex = -1;
  const mark = (n, name) => (elements.get(n) || []).forEach(element => element.classList.add(name));
  steps[number].reads.forEach(([, source]) => mark(source, 'source'));
  steps[number].read.forEach(reader => mark(reader, 'reader'));
  mark(number, 'chosen');
  for (const element of elements.get(number) || []) element.tabIndex = 0;
  chosen = number;
  show(number);
  const view = graph.hidden ? list : graph;
  const element = (elements.get(number) || []).find(e => view.contains(e));
  if (focus && element) {
    element.focus({preventScroll: true});
    element.scrollIntoView({block: 'nearest', inline: 'nearest'});
  }
}

function visible(number) {
  const view = graph.hidden ? list : graph;
  return (elements.get(number) || []).some(e => view.contains(e) && !e.closest('[hidden]') &&
    (graph.hidden || e.style.display !== 'none'));
}

function filter() {
  const words = search.value.toLowerCase();
  steps.forEach((step, number) => {
    const text = [step.title, step.scope, ...step.values.map(value => value.name)].join(' ').toLowerCase();
    const out = hiddenPhases.has(step.phase) || !text.includes(words);
    for (const element of elements.get(number) || []) {
      if (element.parentNode.tagName === 'LI') element.parentNode.hidden = out;
      else element.style.display = out ? 'none' : '';
    }
    step.out = out;
  });
  for (const section of list.querySelectorAll('section'))
    section.hidden = !section.querySelector('li:not([hidden])');
  for (const edge of edges)
    edge.style.display = steps[edge.dataset.from].out || steps[edge.dataset.to].out ? 'none' : '';
}

function view(name) {
  list.hidden = name !== 'list';
  graph.hidden = name !== 'graph';
  document.getElementById('as-list').setAttribute('aria-pressed', String(name === 'list'));
  document.getElementById('as-graph').setAttribute('aria-pressed', String(name === 'graph'));
  choose(chosen, false);
  const element = (elements.get(chosen) || []).find(e => graph.contains(e));
  if (name === 'graph' && element) element.scrollIntoView({block: 'nearest', inline: 'nearest'});
}

const moves = {
  ArrowDown: () => steps.findIndex((_, n) => n > chosen && visible(n)),
  ArrowUp: () => steps.findLastIndex((_, n) => n < chosen && visible(n)),
  Home: () => steps.findIndex((_, n) => visible(n)),
  End: () => steps.findLastIndex((_, n) => visible(n)),
  ArrowLeft: () => (steps[chosen].reads.find(([, source]) => source >= 0 && visible(source)) || [0, -1])[1],
  ArrowRight: () => steps[chosen].read.find(visible) ?? -1,
  Enter: () => chosen, ' ': () => chosen,
};

for (const box of [list, graph]) {
  const stepOf = event => event.target.closest('[data-step]');
  box.addEventListener('mousemove', event => {
    const s = stepOf(event);  // without movement it is the page that has scrolled below the pointer
    if (s && (event.movementX || event.movementY) && Number(s.dataset.step) !== shown) show(Number(s.dataset.step));
  });
  box.addEventListener('mouseleave', () => show(chosen));
  box.addEventListener('click', event => { const s = stepOf(event); if (s) choose(Number(s.dataset.step), true); });
  box.addEventListener('focusin', event => {
    const s = stepOf(event);
    if (s && Number(s.dataset.step) !== chosen) choose(Number(s.dataset.step), false);
  });
  box.addEventListener('keydown', event => {
    if (!stepOf(event) || !moves[event.key] || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    const next = moves[event.key]();
    if (next >= 0) choose(next, true);
  });
}
document.getElementById('as-list').addEventListener('click', () => view('list'));
document.getElementById('as-graph').addEventListener('click', () => view('graph'));
search.addEventListener('input', filter);
for (const button of document.querySelectorAll('.bar [data-phase]')) {
  if (!steps.some(step => step.phase === button.dataset.phase)) button.hidden = true;
  button.addEventListener('click', () => {
    const phase = button.dataset.phase, out = !hiddenPhases.has(phase);
    hiddenPhases[out ? 'add' : 'delete'](phase);
    button.setAttribute('aria-pressed', String(!out));
    filter();
  });
}
for (const [, all] of elements) for (const element of all) element.tabIndex = -1;
if (steps.length) choose(chosen, false);
