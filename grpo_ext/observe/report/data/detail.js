"use strict";
// One completion: its prompt, what was written, what each reward said, and the same prompt at other steps.

const MOST_BUTTONS = 500; // for other completions of a prompt
const detail = { samples: null, at: -1, grouped: false, coloring: "" };

async function showCompletion(samples, i, named = true) {
  detail.samples = samples;
  detail.at = i;
  const { index } = samples;
  const [entry, [id, messages]] = await Promise.all([samples.entry(i), samples.prompt(i)]);
  if (detail.samples !== samples || detail.at !== i) return; // another was chosen meanwhile
  if (named) history.replaceState(null, "", `#at/${samples.address(i)}`);
  const place = byId("detail");
  const group = samples.group(i);
  const facts = [`step ${index.step[i]}`, samples.dataset(i), `group ${index.group[i]}`, `prompt ${id}`,
    `${counted(index.length[i], "token")}`, index.cut[i] ? "cut off at the length limit" : "finished"];
  const head = [el("p", { class: "quiet" }, facts.join(" · "), " · ", el("a", { href: `#at/${samples.address(i)}`, title: "Link to this completion" }, "link")),
    group.length > 1 ? el("p", { class: "controls" }, view("One completion", false), view(`Group of ${group.length}`, true)) : null,
    el("h3", {}, "Prompt"), ...messages.map(messageOf), ...columnsOfRow(entry[5])];
  const again = (kind) => { detail.coloring = kind; showCompletion(samples, i, named); };
  const coloring = coloringsOf(entry[4]).includes(detail.coloring) ? detail.coloring : "";
  const body = detail.grouped && group.length > 1 ? await groupOf(samples, group, i) : [
    el("h3", {}, "Completion"), coloringButtons(entry[4], coloring, again), completionOf(samples, i, entry, coloring),
    el("h3", {}, "Rewards"), rewardTable(samples, i, entry[1]), ...samePrompt(samples, i)];
  if (detail.samples === samples && detail.at === i) place.replaceChildren(...[...head, ...body].filter(Boolean));
}

function view(words, grouped) {
  return el("button", { type: "button", "aria-pressed": String(detail.grouped === grouped), on: { click: () => showGroup(grouped) } }, words);
}

function showGroup(grouped) {
  detail.grouped = grouped;
  if (detail.at >= 0) showCompletion(detail.samples, detail.at);
}

function messageOf([role, content]) {
  return el("div", { class: "message", dir: "auto" }, role ? el("small", {}, role) : null, content);
}

// The columns of the dataset that the rewards read, each as [name, value].
function columnsOfRow(columns) {
  if (!columns.length) return [];
  const rows = columns.map(([name, value]) => el("tr", {}, el("td", {}, name), el("td", { class: "said", dir: "auto" }, value)));
  return [el("h3", {}, "Dataset columns"), el("div", { class: "wide" }, el("table", {}, el("tbody", {}, rows)))];
}

function rewardTable(samples, i, said) {
  const { index, run } = samples;
  const rows = run.rewards.map(({ name, weight }) => {
    const value = index.rewards[name]?.[i];
    const words = value === null || value === undefined ? "not scored" : said[name] ?? "";
    return el("tr", {}, el("td", {}, el("i", { class: "chip", style: { background: samples.color(i, name) } }), ` ${name}`), el("td", { class: "n" }, figure(value)),
      el("td", { class: "n quiet" }, typeof weight === "number" ? `× ${figure(weight)}` : ""), el("td", { class: "said" }, words));
  });
  const total = el("tr", { class: "total" }, el("td", {}, el("i", { class: "chip", style: { background: samples.color(i) } }), el("b", {}, " weighted sum")),
    el("td", { class: "n" }, el("b", {}, figure(index.reward[i]))), el("td"),
    el("td", { class: "said" }, index.advantage[i] === null ? "" : `advantage ${signed(index.advantage[i], 3)}`));
  return el("div", { class: "wide" }, el("table", {}, el("tbody", {}, rows, total)));
}

// A button for each completion of this prompt, in the order of the steps: those made together with it, then all others.
function samePrompt(samples, i) {
  const { index } = samples;
  const together = (other) => index.step[other] === index.step[i] && index.dataset[other] === index.dataset[i];
  const all = samples.byPrompt.get(index.prompt[i]);
  const buttons = (some) => el("div", { class: "steps" }, some.map((other) => {
    const label = `${index.step[other]}${samples.mode(other) === "eval" ? "e" : ""}: ${figure(index.reward[other])}`;
    const title = `${samples.dataset(other)}, step ${index.step[other]}`;
    return el("button", { type: "button", title, style: { borderLeftColor: samples.color(other) }, "aria-pressed": String(other === i), on: { click: () => jump(other) } }, label);
  }));
  const lists = [["The same prompt at this step", all.filter(together)],
    ["The same prompt at other steps", all.filter((other) => !together(other))]];
  return lists.flatMap(([title, some]) => {
    if (!some.some((other) => other !== i)) return [];
    const more = some.length > MOST_BUTTONS ? ` (the first ${MOST_BUTTONS} of ${some.length})` : "";
    return [el("h3", {}, title + more), buttons(some.slice(0, MOST_BUTTONS))];
  });
}

// Show a completion that need not be in the list as it is filtered now.
function jump(i) {
  const at = browser.shown.indexOf(i);
  if (at >= 0) return select(at, true);
  browser.selected = -1;
  drawRows();
  return showCompletion(browser.samples, i);
}

// The same prompt at the next step that has it, or at the previous one.
function jumpInPrompt(direction) {
  if (detail.at < 0) return;
  const { index } = detail.samples;
  const others = detail.samples.byPrompt.get(index.prompt[detail.at]);
  const here = index.step[detail.at];
  const steps = [...new Set(others.map((i) => index.step[i]))].filter((step) => (step - here) * direction > 0);
  if (!steps.length) return;
  const step = direction > 0 ? Math.min(...steps) : Math.max(...steps);
  jump(others.find((i) => index.step[i] === step));
}
