"use strict";
// The completions of a run: `index` has short columns for all of them, texts come in chunks, unpacked on first use.

class Samples {
  constructor(run) {
    this.run = run;
    this.chunks = new Map();
    this.byPrompt = new Map();
    this.index = { rewards: {}, datasets: [], step: [], group: [], length: [], reward: [], advantage: [], dataset: [], prompt: [], cut: [], task: [],
      turns: [], end: [], environment_time: [], outcome: [] };
  }

  async open() {
    this.take(await unpack(`index-${this.run.number}`), 0);
    return this;
  }

  // Take in an index, or its columns from the i-th completion on.
  take(index, from) {
    for (let i = this.count - 1; i >= from; i--) this.byPrompt.get(this.index.prompt[i]).pop();
    this.index = index;
    for (let i = from; i < this.count; i++) {
      const prompt = index.prompt[i];
      if (!this.byPrompt.has(prompt)) this.byPrompt.set(prompt, []);
      this.byPrompt.get(prompt).push(i);
    }
    this.ranges = {};
  }

  get count() {
    return this.index.step.length;
  }

  get total() {
    return this.run.totalSamples;
  }

  // Lowest and highest value of a reward, or of the weighted sum.
  range(name = "reward") {
    return (this.ranges[name] ??= this.scores(name).reduce(([low, high], value) =>
      (value === null ? [low, high] : [Math.min(low, value), Math.max(high, value)]), [Infinity, -Infinity]));
  }

  scores(name) {
    return name === "reward" ? this.index.reward : this.index.rewards[name] ?? [];
  }

  color(i, name = "reward") {
    return rewardColor(this.scores(name)[i], this.range(name));
  }

  mode(i) {
    return this.index.datasets[this.index.dataset[i]][0];
  }

  dataset(i) {
    const [mode, name] = this.index.datasets[this.index.dataset[i]];
    return mode === name ? mode : `${mode} ${name}`;
  }

  // The completions that were made together with the i-th.
  group(i) {
    const { index } = this;
    return this.byPrompt.get(index.prompt[i]).filter((other) =>
      ["step", "dataset", "group"].every((key) => index[key][other] === index[key][i]));
  }

  // A name of the i-th completion that holds in every page of its run.
  address(i) {
    const { index, run } = this;
    return [run.name, index.step[i], index.datasets[index.dataset[i]].join(":"), index.group[i], this.group(i).indexOf(i)]
      .map(encodeURIComponent).join("/");
  }

  at(address) {
    const [, step, data, group, number] = address;
    const { index } = this;
    const found = index.step.findIndex((value, i) => value === Number(step) && index.group[i] === Number(group)
      && index.datasets[index.dataset[i]].join(":") === data);
    return found < 0 ? -1 : this.group(found)[Number(number)] ?? found;
  }

  // The entry of the i-th completion if it is unpacked, else undefined.
  entryNow(i) {
    const chunk = this.chunks.get(Math.floor(i / this.run.chunk));
    return Array.isArray(chunk) ? chunk[i % this.run.chunk] : undefined;
  }

  // [text, what each reward said, marks, turns, tokens, columns] of the i-th completion.
  async entry(i) {
    const number = Math.floor(i / this.run.chunk);
    if (!this.chunks.has(number)) {
      const coming = unpack(`texts-${this.run.number}-${number}`).then((rows) => {
        const chunk = rows.map(entryOf);
        this.chunks.set(number, chunk);
        return chunk;
      });
      this.chunks.set(number, coming);
    }
    return (await this.chunks.get(number))[i % this.run.chunk];
  }

  async prompt(i) {
    this.prompts ??= unpack(`prompts-${this.run.number}`);
    const [id, prompt] = (await this.prompts)[this.index.prompt[i]];
    return [id, messagesOf(prompt)];
  }
}
