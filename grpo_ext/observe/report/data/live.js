"use strict";
// The page while runs go on: it asks its server what is new, and takes in only that.

const MOST_CHUNKS = 60; // of texts in memory
const TEXTS_AT_ONCE = 25;
const SHOWN_AT_FIRST = 6; // of many runs
const live = { renewals: 0 };

async function ask(path) {
  const answer = await fetch(path, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${path}: ${answer.status}`);
  return answer.json();
}

async function startLive(renew) {
  page.load = async (run) => {
    const samples = new LiveSamples(run);
    await samples.follow();
    return samples;
  };
  for (;;) {
    const words = await renewOnce().then(() => `Updated at ${new Date().toLocaleTimeString()}.`, 
      (error) => `Not updated (${error.message}); the page shows what it loaded before.`);
    byId("made").textContent = words;
    live.renewals++;
    await new Promise((resolve) => setTimeout(resolve, renew * 1000));
    if (document.hidden) await new Promise((resolve) => document.addEventListener("visibilitychange", resolve, { once: true }));
  }
}

async function renewOnce() {
  const states = await ask("/runs");
  let changed = false;
  for (const [number, state] of states.entries()) changed = (await renewRun(number, state)) || changed;
  if (changed) drawRunsAndCurves();
  const going = page.runs.findLastIndex((run) => run.state === "running");
  const first = going >= 0 ? going : page.runs.length - 1;
  if (!page.runs[page.opened]?.opened && first >= 0) {
    await open(page.opened < 0 ? first : page.opened);
    await openAddress();
  } else if (first < 0) {
    showNoSamples();
  } else if (page.opened >= 0) {
    const samples = await page.runs[page.opened].opened;
    if (samples && states[page.opened].samples !== samples.place?.stop) await samples.follow();
  }
}

// Bring a run up to its state; whether anything has changed.
async function renewRun(number, state) {
  let run = page.runs[number];
  const told = JSON.stringify([state.running, state.about, state.name]);
  const known = async () => ({ ...(await ask(`/about/${number}`)), name: state.name });
  if (!run) {
    run = new Run(number, await known());
    page.runs.push(run);
    run.shown = page.runs.length <= SHOWN_AT_FIRST;
  } else if (run.told !== told) run.know(await known());
  let changed = run.told !== told;
  run.told = told;
  while (state.metrics !== run.place?.stop) {
    const found = await ask(`/metrics/${number}?${from(run.place)}`);
    run.absorb(found);
    run.place = { next: found.next, stop: found.stop };
    run.faults = [...new Set([...run.faults, ...found.faults])].slice(0, 20);
    changed = true;
    if (found.stop >= state.metrics) break;
  }
  if (run.place && run.changesUpTo !== run.place.stop) {
    const upTo = run.place.stop;
    run.changes = await ask(`/changes/${number}`); // of the whole log
    run.changesUpTo = upTo;
    changed = true;
  }
  return changed;
}

function from(place) {
  return new URLSearchParams(place?.next ?? { start: 0, step: 0 });
}

class LiveSamples extends Samples {
  constructor(run) {
    super(run);
    this.index.place = [];
    this.prompts = new Map(); // prompt ids and their numbers
    this.place = null;
    this.dropped = 0;
  }

  get total() {
    return this.count + this.dropped;
  }

  // Take in the rest of the log, and show each piece of it.
  async follow() {
    for (let more = true; more;) {
      const found = await ask(`/samples/${this.run.number}?${from(this.place)}`);
      this.append(found);
      drawSamples(this);
      more = found.next.start === found.stop && found.stop > found.start; // an answer that ended before the log does
    }
  }

  // Replace what is known from the first step of these columns on.
  append({ start, index: more, panels, next, stop }) {
    const { index } = this;
    let count = start ? this.count : 0;
    while (count && more.step.length && index.step[count - 1] >= more.step[0]) count--;
    if (!start) [index.datasets, this.prompts, this.dropped] = [[], new Map(), 0];
    this.cutTo(count);
    const numberIn = (list, value) => {
      const at = list.findIndex((known) => JSON.stringify(known) === JSON.stringify(value));
      return at < 0 ? list.push(value) - 1 : at;
    };
    const datasets = more.datasets.map((value) => numberIn(index.datasets, value));
    const prompts = more.prompts.map((id) => this.prompts.get(id) ?? this.prompts.set(id, this.prompts.size).get(id));
    const fresh = { ...more, dataset: more.dataset.map((k) => datasets[k]), prompt: more.prompt.map((k) => prompts[k]) };
    const joined = { rewards: {}, datasets: index.datasets };
    for (const name of columnsOf(index)) joined[name] = extended(index[name], count, fresh[name]);
    for (const name of new Set([...Object.keys(index.rewards), ...Object.keys(more.rewards)])) {
      joined.rewards[name] = extended(index.rewards[name] ?? new Array(count).fill(null), count, more.rewards[name] ?? more.step.map(() => null));
    }
    for (const number of [...this.chunks.keys()]) if ((number + 1) * TEXTS_AT_ONCE > count) this.chunks.delete(number);
    this.take(joined, count);
    this.place = { next, stop };
    this.run.absorbSampled({ start, panels });
    if (this.count > 1.25 * page.most) this.drop(this.count - page.most);
  }

  // Forget the oldest completions in training, so that the page does not grow with the run.
  drop(count) {
    const { index } = this;
    const kept = index.step.map((_, i) => i).filter((i) => this.mode(i) === "eval" || count-- <= 0);
    const pick = (column) => kept.map((i) => column[i]);
    this.dropped += this.count - kept.length;
    const moved = new Map(kept.map((old, i) => [old, i]));
    if (detail.samples === this) detail.at = moved.get(detail.at) ?? -1;
    if (browser.samples === this) {
      const chosen = moved.get(browser.shown[browser.selected]);
      const above = browser.shown.slice(0, Math.floor(browser.list.scrollTop / ROW));
      browser.list.scrollTop -= ROW * above.filter((i) => !moved.has(i)).length;
      browser.shown = browser.shown.map((i) => moved.get(i)).filter((i) => i !== undefined);
      browser.selected = chosen === undefined ? -1 : browser.shown.indexOf(chosen);
    }
    this.cutTo(0);
    this.chunks.clear();
    this.take({ ...Object.fromEntries(columnsOf(index).map((name) => [name, pick(index[name])])), datasets: index.datasets,
      rewards: Object.fromEntries(Object.entries(index.rewards).map(([name, column]) => [name, pick(column)])) }, 0);
    if (detail.samples !== this) return;
    if (detail.at >= 0) showCompletion(this, detail.at, false); // its buttons have other numbers now
    else byId("detail").querySelectorAll("button").forEach((button) => button.remove()); // they would show others
  }

  // Forget the completions from the i-th on.
  cutTo(count) {
    for (let i = this.count - 1; i >= count; i--) this.byPrompt.get(this.index.prompt[i]).pop();
    if (!count) this.byPrompt.clear();
    this.index = { ...this.index, step: this.index.step.slice(0, count) };
  }

  entryNow(i) {
    const chunk = this.chunks.get(Math.floor(i / TEXTS_AT_ONCE));
    return Array.isArray(chunk) ? chunk[i % TEXTS_AT_ONCE]?.entry : undefined;
  }

  async whole(i) {
    const number = Math.floor(i / TEXTS_AT_ONCE);
    if (!this.chunks.has(number)) {
      const { place, step, dataset } = this.index;
      const [first, end] = [number * TEXTS_AT_ONCE, Math.min(this.count, (number + 1) * TEXTS_AT_ONCE)];
      const stretches = []; // of neighbors in the log: between others, completions of training may have been dropped
      for (let k = first; k < end; k++) {
        const apart = step[k] !== step[k - 1] || dataset[k] !== dataset[k - 1];
        if (k === first || (this.dropped && apart)) stretches.push([place[k]]);
        stretches.at(-1)[1] = place[k] + 1;
      }
      const asked = stretches.map(([start, stop]) => ask(`/texts/${this.run.number}?start=${start}&stop=${stop}`));
      const coming = Promise.all(asked).then((answers) => {
        const chunk = answers.flat().map(([at, prompt, ...row]) => ({ at, messages: messagesOf(prompt), entry: entryOf(row) }));
        if (this.chunks.get(number) === coming) this.chunks.set(number, chunk);
        return chunk;
      });
      coming.catch(() => this.chunks.get(number) === coming && this.chunks.delete(number)); // it is asked for again
      this.chunks.set(number, coming);
      if (this.chunks.size > MOST_CHUNKS) this.chunks.delete(this.chunks.keys().next().value);
    }
    const found = (await this.chunks.get(number))[i % TEXTS_AT_ONCE];
    return found?.at === this.index.place[i] ? found : { messages: [], entry: ["(this line is no longer in the log)", {}, [], [], null, []] };
  }

  async entry(i) {
    return (await this.whole(i)).entry;
  }

  async prompt(i) {
    this.ids ??= [];
    if (this.ids.length !== this.prompts.size) this.ids = [...this.prompts.keys()];
    return [this.ids[this.index.prompt[i]], (await this.whole(i)).messages];
  }
}

// The names of the columns that have a value for each completion.
function columnsOf(index) {
  return Object.keys(index).filter((name) => name !== "rewards" && name !== "datasets");
}

function extended(old, count, more) {
  old.length = count;
  for (const value of more) old.push(value);
  return old;
}
