"use strict";
// Draws the pictures and fills the tables of the page from its one block of data. Texts come from programs of users:
// they are only ever set as text. A mark of a picture stands for `data-calls` calls, or `data-trials` trials.
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const SVG = "http://www.w3.org/2000/svg";
  const SHOWN = 200; // rows of a table that are shown at first
  const STEP = 2; // pixels of a cell of the pictures over calls
  let names = 0;

  // ------------------------------------------------------------------------------------------- elements

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    return filled(made, attributes, children);
  }

  function shape(name, attributes = {}, ...children) {
    const made = document.createElementNS(SVG, name);
    return filled(made, attributes, children);
  }

  function filled(made, attributes, children) {
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value);
    made.append(...children);
    return made;
  }

  const number = new Intl.NumberFormat("en");
  const plural = (count, word) => `${number.format(count)} ${count === 1 ? word : `${word}s`}`;
  const at = (packed, place) => (Array.isArray(packed) ? packed[place] : packed);
  const all = (packed, count) => (Array.isArray(packed) ? packed : new Array(count).fill(packed));
  const sum = (numbers) => numbers.reduce((total, one) => total + one, 0);
  const color = (graph) => (graph < 0 ? "unserved" : `g${graph % 8}`);

  function time(seconds) {
    if (seconds < 1e-3) return `${(1e6 * seconds).toPrecision(2)} µs`;
    return seconds < 1 ? `${(1e3 * seconds).toPrecision(3)} ms` : `${seconds.toPrecision(3)} s`;
  }

  // ------------------------------------------------------------------------------------------- scales

  // A scale from sizes to pixels. Sizes that span much are drawn by their logarithm, which has a place for 0 as well.
  function scale(values, from, to) {
    let low = Infinity;
    let high = -Infinity;
    for (const value of values) {
      if (value < low) low = value;
      if (value > high) high = value;
    }
    if (low > high) [low, high] = [0, 1];
    const isLog = low >= 0 && high > 64 * Math.max(1, low);
    const turned = isLog ? (value) => Math.log1p(value) : (value) => value;
    if (low === high) [low, high] = [Math.max(0, low - 1), high + 1];
    const [first, last] = [turned(low), turned(high)];
    const place = (value) => from + ((turned(value) - first) / (last - first)) * (to - from);
    return { low, high, place, ticks: ticks(low, high, isLog), from, to };
  }

  function ticks(low, high, isLog) {
    if (isLog) {
      const found = [low];
      for (let size = 4; size < high / 2; size *= 4) if (size > 2 * low) found.push(size);
      return [...found, high];
    }
    const raw = (high - low) / 4;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = Math.max(1, [1, 2, 5, 10].map((one) => one * power).find((one) => one >= raw));
    const found = [];
    for (let size = Math.ceil(low / step) * step; size <= high; size += step) found.push(Math.round(size));
    return found;
  }

  const short = new Intl.NumberFormat("en", { notation: "compact", maximumSignificantDigits: 3 });

  // ------------------------------------------------------------------------------------------- frames

  // A picture: its frame with axes, and what is drawn inside. `items` are points with a text, which the pointer and the
  // arrow keys read out.
  function picture({ title, story, width, height, x, y, xName, yName, marks, items = [], more = "" }) {
    const id = `picture-${names++}`;
    const svg = shape("svg", {
      viewBox: `0 0 ${width} ${height}`,
      width,
      height,
      role: "img",
      tabindex: "0",
      "aria-labelledby": `${id}-title ${id}-story`,
    });
    svg.append(shape("title", { id: `${id}-title` }, title), shape("desc", { id: `${id}-story` }, story));
    if (x) {
      for (const tick of x.ticks) {
        svg.append(text(x.place(tick), y.from + 14, short.format(tick), "middle"));
        svg.append(shape("path", { class: "grid", d: `M${x.place(tick)} ${y.from}V${y.to}` }));
      }
      svg.append(text((x.from + x.to) / 2, y.from + 28, xName, "middle"));
    }
    if (y) {
      for (const tick of y.ticks) {
        svg.append(text(x.from - 6, y.place(tick) + 4, short.format(tick), "end"));
        svg.append(shape("path", { class: "grid", d: `M${x.from} ${y.place(tick)}H${x.to}` }));
      }
      svg.append(shape("path", { class: "axis", d: `M${x.from} ${y.to}V${y.from}H${x.to}` }));
      if (yName) svg.append(text(x.from - 6, y.to - 8, yName, "start"));
    }
    svg.append(...marks);
    const said = element("div", { class: "more", "aria-live": "polite" }, more || " ");
    if (items.length) readOut(svg, items, said);
    const caption = element("figcaption", {}, element("strong", {}, title), element("div", {}, story), said);
    return element("figure", {}, svg, caption);
  }

  function text(x, y, words, anchor = "start", kind = "") {
    return shape("text", { x, y, "text-anchor": anchor, class: kind }, String(words));
  }

  function readOut(svg, items, said) {
    const ring = shape("circle", { r: 6, class: "tried", visibility: "hidden" });
    svg.append(ring);
    items.sort((one, other) => one.x - other.x || one.y - other.y);
    let current = -1;
    const show = (place) => {
      current = Math.max(0, Math.min(items.length - 1, place));
      const item = items[current];
      ring.setAttribute("cx", item.x);
      ring.setAttribute("cy", item.y);
      ring.setAttribute("visibility", "visible");
      said.textContent = item.text();
    };
    svg.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      const place = { Home: 0, End: items.length - 1 }[event.key];
      if (step === undefined && place === undefined) return;
      event.preventDefault();
      show(place === undefined ? current + step : place);
    });
    svg.addEventListener("pointermove", (event) => {
      const frame = svg.getBoundingClientRect();
      const factor = svg.viewBox.baseVal.width / frame.width;
      const [x, y] = [(event.clientX - frame.left) * factor, (event.clientY - frame.top) * factor];
      let best = 0;
      let least = Infinity;
      items.forEach((item, place) => {
        const distance = (item.x - x) ** 2 + (item.y - y) ** 2;
        if (distance < least) [best, least] = [place, distance];
      });
      show(best);
    });
  }

  function legend(entry) {
    const made = element("div", { class: "legend" });
    const shown = entry.graphs.map((name, graph) => [name, graph]);
    if (all(entry.graph_of, 1).some((graph) => graph < 0)) shown.push(["no graph takes it", -1]);
    for (const [name, graph] of shown) {
      const mark = shape("svg", { width: 14, height: 14, "aria-hidden": "true" });
      mark.append(shape("path", { class: dots(graph), d: "M7 7h0" }));
      made.append(element("span", {}, mark, ` ${name}`));
    }
    return made;
  }

  const dots = (graph) => `dots ${graph % 2 ? "" : "round"} ${color(graph)}`;

  // ------------------------------------------------------------------------------------------- the pictures

  // 1. Each axis over the calls. Calls that fall on the same cell are one mark.
  function overCalls(entry, column) {
    const [width, height] = [560, 190];
    const sizes = all(column.sizes, entry.different);
    const repeats = all(entry.repeats, entry.runs);
    const total = sum(repeats);
    const seen = [...new Set(sizes)].filter((size) => size !== null);
    const x = scale([0, Math.max(1, total - 1)], 44, width - 10);
    x.ticks = ticks(0, Math.max(1, total - 1), false);
    x.place = linear(0, Math.max(1, total - 1), 44, width - 10);
    const y = scale(seen, height - 36, 22);
    const columns = Math.floor((x.to - x.from) / STEP);
    const cells = new Map();
    let begin = 0;
    for (let run = 0; run < entry.runs; run++) {
      const row = entry.order === null ? run : entry.order[run];
      const size = sizes[row];
      const end = begin + repeats[run];
      if (size !== null) {
        const graph = at(entry.graph_of, row);
        const level = Math.round(y.place(size) / STEP);
        let call = begin;
        while (call < end) {
          const place = total <= columns ? call : Math.floor((call * columns) / total);
          const next = total <= columns ? call + 1 : Math.min(end, Math.ceil(((place + 1) * total) / columns));
          const count = Math.max(1, next - call);
          const key = (place * 1000 + level) * 64 + graph + 1;
          const cell = cells.get(key) || { graph, x: cellPlace(x, place, total, columns), y: y.place(size), size, first: call, count: 0 };
          cell.count += count;
          cell.last = call + count - 1;
          cells.set(key, cell);
          call += count;
        }
      }
      begin = end;
    }
    const found = [...cells.values()];
    const marks = byGraph(found);
    const drawn = sum(found.map((cell) => cell.count));
    const lacking = total - drawn ? ` ${plural(total - drawn, "call")} ${total - drawn === 1 ? "has" : "have"} no such axis.` : "";
    const range = seen.length ? `${Math.min(...seen)} to ${Math.max(...seen)}` : "no size";
    return picture({
      title: `${column.text} over the calls`,
      story: `${column.axes.join(", ")}: ${range} in ${plural(drawn, "call")}.${lacking}`,
      width, height, x, y, xName: "call", yName: column.text, marks,
      items: found.map((cell) => ({
        x: cell.x,
        y: cell.y,
        text: () => `${cell.first === cell.last ? `call ${cell.first}` : `calls ${cell.first} to ${cell.last}`}: ${column.text} ${cell.size}, ${plural(cell.count, "call")}, ${graphName(entry, cell.graph)}`,
      })),
    });
  }

  const linear = (low, high, from, to) => (value) => from + ((value - low) / (high - low)) * (to - from);
  const graphName = (entry, graph) => (graph < 0 ? "no graph" : entry.graphs[graph]);

  function cellPlace(x, place, total, columns) {
    return total <= columns ? x.place(place) : x.from + place * STEP;
  }

  // One path a graph: very many marks are drawn at once.
  function byGraph(cells) {
    const groups = new Map();
    for (const cell of cells) {
      if (!groups.has(cell.graph)) groups.set(cell.graph, []);
      groups.get(cell.graph).push(cell);
    }
    return [...groups].map(([graph, own]) =>
      shape("path", {
        class: dots(graph),
        d: own.map((cell) => `M${cell.x.toFixed(1)} ${cell.y.toFixed(1)}h0`).join(""),
        "data-calls": sum(own.map((cell) => cell.count)),
      }),
    );
  }

  // 2. Two symbols together, the ranges of the graphs, and the sizes that were tried.
  function joint(entry, pair) {
    const [width, height] = [340, 300];
    const [first, second] = [entry.columns[pair.x], entry.columns[pair.y]];
    const [xs, ys] = [all(first.sizes, entry.different), all(second.sizes, entry.different)];
    const both = [...xs.keys()].filter((row) => xs[row] !== null && ys[row] !== null);
    const x = scale([...both.map((row) => xs[row]), ...pair.tried.map((one) => one[0])], 48, width - 16);
    const y = scale([...both.map((row) => ys[row]), ...pair.tried.map((one) => one[1])], height - 40, 26);
    const side = 8;
    const cells = new Map();
    for (const row of both) {
      const graph = at(entry.graph_of, row);
      const [left, top] = [Math.round(x.place(xs[row]) / side), Math.round(y.place(ys[row]) / side)];
      const key = `${left} ${top} ${graph}`;
      const cell = cells.get(key) || { graph, left, top, count: 0, sizes: [xs[row], ys[row]], different: 0 };
      cell.count += at(entry.counts, row);
      cell.different += 1;
      cells.set(key, cell);
    }
    const found = [...cells.values()];
    const most = Math.max(1, ...found.map((cell) => cell.count));
    const marks = found.map((cell) =>
      shape("rect", {
        x: cell.left * side - side / 2, y: cell.top * side - side / 2, width: side, height: side,
        class: cell.graph < 0 ? "fail" : `f${cell.graph % 8}`,
        "fill-opacity": (0.3 + (0.7 * Math.log1p(cell.count)) / Math.log1p(most)).toFixed(2),
        "data-calls": cell.count,
      }),
    );
    const inside = (one, value) => Math.max(Math.min(one.from, one.to) - 8, Math.min(Math.max(one.from, one.to) + 8, value));
    for (const box of pair.boxes) {
      const [left, right] = [x.place(box.x[0]), box.x[1] === null ? Infinity : x.place(box.x[1])].map((one) => inside(x, one));
      const [bottom, top] = [y.place(box.y[0]), box.y[1] === null ? -Infinity : y.place(box.y[1])].map((one) => inside(y, one));
      marks.push(shape("rect", { class: `box ${color(box.graph)}`, x: left, y: top, width: Math.max(2, right - left), height: Math.max(2, bottom - top) }));
    }
    const tried = pair.tried.map(([one, other, passed, failed]) => ({ x: x.place(one), y: y.place(other), one, other, passed, failed }));
    for (const trial of tried) {
      const d = trial.failed ? `M${trial.x - 4} ${trial.y - 4}l8 8m0 -8l-8 8` : `M${trial.x - 4} ${trial.y}h8m-4 -4v8`;
      marks.push(shape("path", { class: trial.failed ? "failed" : "tried", d, "data-trials": trial.passed + trial.failed }));
    }
    const ranges = pair.boxes.map((box) => `${entry.graphs[box.graph]}: ${first.text} ${range(box.x)}, ${second.text} ${range(box.y)}`);
    const trials = sum(pair.tried.map((one) => one[2] + one[3]));
    const failed = sum(pair.tried.map((one) => one[3]));
    const proof = trials ? ` ${plural(trials, "trial")} of such sizes (+)${failed ? `, ${failed} failed (×)` : ", all passed"}.` : "";
    return picture({
      title: `${second.text} beside ${first.text}`,
      story: `${plural(sum(found.map((cell) => cell.count)), "call")} of ${plural(both.length, "different kind")}.${proof}${ranges.length ? ` Exported for: ${ranges.join("; ")}.` : ""}`,
      width, height, x, y, xName: first.text, yName: second.text, marks,
      items: [
        ...found.map((cell) => ({
          x: cell.left * side, y: cell.top * side,
          text: () => `${first.text} ${cell.different > 1 ? "about " : ""}${cell.sizes[0]}, ${second.text} ${cell.sizes[1]}: ${plural(cell.count, "call")}, ${graphName(entry, cell.graph)}`,
        })),
        ...tried.map((trial) => ({
          x: trial.x, y: trial.y,
          text: () => `${first.text} ${trial.one}, ${second.text} ${trial.other}: ${trial.passed} trials passed, ${trial.failed} failed`,
        })),
      ],
    });
  }

  const range = ([low, high]) => (high === null ? `${low} and more` : low === high ? String(low) : `${low} to ${high}`);

  // 3. What a relation says, and what the calls had.
  function relation(entry, one) {
    const [width, height] = [340, 260];
    const x = scale(one.points.map((point) => point[0]), 48, width - 16);
    const y = scale(one.points.map((point) => point[1]), height - 40, 26);
    const cells = one.points.map(([left, size, count]) => ({ graph: one.graph, x: x.place(left), y: y.place(size), left, size, count }));
    const line = one.line.map(([left, size], place) => `${place ? "L" : "M"}${x.place(left).toFixed(1)} ${y.place(size).toFixed(1)}`);
    const claim = line.length ? [shape("path", { class: "claim", d: line.join("") })] : [];
    const more = one.left_out ? ` ${plural(one.left_out, "point")} more ${one.left_out === 1 ? "is" : "are"} not drawn.` : "";
    return picture({
      title: one.texts[0],
      story: `${one.texts.length > 1 ? `The same holds for ${one.texts.slice(1).join(", ")}. ` : ""}Seen in ${one.evidence}.${more}`,
      width, height, x, y, xName: one.x, yName: one.y, marks: [...claim, ...byGraph(cells)],
      items: cells.map((cell) => ({ x: cell.x, y: cell.y, text: () => `${one.x} ${cell.left}, ${one.y} ${cell.size}: ${plural(cell.count, "call")}` })),
    });
  }

  // 4. Asked, observed and obtained of each axis.
  function spans(entry, isProven) {
    const shown = entry.spans.slice(0, 40);
    const [width, height] = [820, 40 + 24 * shown.length];
    const known = shown.flatMap((span) => [...span.seen, ...(span.low === null ? [] : [span.low]), ...(span.high === null ? [] : [span.high])]);
    const x = scale(known.length ? known : [0, 1], 330, 640);
    const y = { from: height - 30, to: 4, ticks: [], place: (value) => value };
    const marks = [];
    shown.forEach((span, place) => {
      const level = 18 + 24 * place;
      const name = `${entry.graphs.length > 1 ? `${entry.graphs[span.graph]}: ` : ""}${span.axes.join(", ")}`;
      marks.push(text(4, level + 4, clipped(name, 54), "start", "value"));
      if (span.low !== null) {
        const end = span.open ? x.to + 12 : x.place(span.high);
        const arrow = span.open ? `m-5 -4l5 4l-5 4` : "";
        marks.push(shape("path", { class: `box ${color(span.graph)}`, d: `M${x.place(span.low)} ${level}H${end}${arrow}` }));
      }
      marks.push(shape("path", { class: dots(span.graph), d: span.seen.map((size) => `M${x.place(size)} ${level}h0`).join(""), "data-sizes": span.seen.length }));
      const told = isProven ? `${span.asked} → ${span.obtained}` : span.asked;
      marks.push(text(662, level + 4, clipped(told, 26), "start", "value"));
    });
    const left = entry.spans.length - shown.length;
    return picture({
      title: isProven ? "Observed, asked for and obtained" : "Observed, and what an export would ask for",
      story: `Sizes that were observed are dots, the range that is asked for is a line${isProven ? ", and after the arrow stands what the program takes" : ""}.${left ? ` ${plural(left, "axis")} more in the table of axes.` : ""}`,
      width, height, x, y, xName: "size", yName: "", marks,
    });
  }

  const clipped = (words, most) => (words.length <= most ? words : `${words.slice(0, most - 1)}…`);

  // 5. The sizes of all trials.
  function proof(entry) {
    const { axes, cells, without } = entry.proof;
    const xs = [...new Set(cells.map((cell) => cell[0]))].sort((one, other) => one - other);
    const ys = axes.length > 1 ? [...new Set(cells.map((cell) => cell[1]))].sort((one, other) => one - other) : [0];
    const side = Math.max(12, Math.min(26, 700 / Math.max(1, xs.length)));
    const [width, height] = [90 + side * Math.max(6, xs.length), 60 + side * ys.length];
    const left = (size) => 60 + side * xs.indexOf(size);
    const top = (size) => height - 40 - side * (ys.indexOf(size) + 1);
    const marks = [];
    const items = [];
    for (const cell of cells) {
      const [size, other] = [cell[0], axes.length > 1 ? cell[1] : 0];
      const [passed, failed] = cell.slice(-2);
      marks.push(shape("rect", {
        x: left(size) + 1, y: top(other) + 1, width: side - 2, height: side - 2,
        class: failed ? "fail" : "pass", "fill-opacity": failed ? 1 : 0.55, "data-trials": passed + failed,
      }));
      if (failed) marks.push(shape("path", { class: "tried", d: `M${left(size) + 4} ${top(other) + 4}l${side - 8} ${side - 8}m0 ${8 - side}l${8 - side} ${side - 8}` }));
      const words = axes.map((name, place) => `${name} ${cell[place]}`).join(", ");
      items.push({ x: left(size) + side / 2, y: top(other) + side / 2, text: () => `${words}: ${passed} passed, ${failed} failed` });
    }
    xs.forEach((size, place) => {
      if (side >= 20 || place % 3 === 0) marks.push(text(left(size) + side / 2, height - 26, short.format(size), "middle"));
    });
    if (axes.length > 1) for (const size of ys) marks.push(text(54, top(size) + side / 2 + 4, short.format(size), "end"));
    marks.push(text(60, height - 10, axes[0] || "", "start"));
    if (axes.length > 1) marks.push(text(4, 12, axes[1], "start"));
    const trials = sum(cells.map((cell) => sum(cell.slice(-2))));
    const others = without[0] + without[1];
    const refused = entry.proof.refused.length;
    const rest = others ? ` ${plural(others, "further trial")} without these sizes, watched calls among them: ${without[0]} passed, ${without[1]} failed.` : "";
    const outside = refused ? ` Outside of the contracts, and refused as it should be: ${entry.proof.refused.slice(0, 6).join("; ")}${refused > 6 ? `; ${refused - 6} more` : ""}.` : "";
    return picture({
      title: "Sizes that were tried",
      story: `${plural(trials, "trial")}, by ${axes.join(" and ") || "no size"}; a failed one is crossed out.${rest}${outside}`,
      width, height, x: null, y: null, marks, items,
    });
  }

  // 6. The conditions of the graphs, with the line of the model.
  function guard(entry, one) {
    const [here, there] = one.sides;
    const total = Math.max(1, here + there);
    const width = 300;
    const bar = shape("svg", { viewBox: `0 0 ${width} 14`, width, height: 14, role: "img", tabindex: "0",
      "aria-label": `${plural(here, "call")} where ${one.condition}, ${there} where ${one.otherwise}` });
    const part = (width * here) / total;
    bar.append(
      shape("rect", { class: `f${one.graph % 8}`, x: 0, y: 2, width: part, height: 10, "data-calls": here }),
      shape("rect", { class: "other-side", x: part, y: 2, width: width - part, height: 10, "data-calls": there }),
    );
    return element("div", { class: "guard" },
      element("div", {}, `${entry.graphs[one.graph]} needs `, element("code", {}, one.condition), ` (${one.origin})`),
      ...(one.line ? [element("div", {}, element("code", {}, one.line))] : []),
      bar,
      element("div", {}, `${plural(here, "call")} on this side, ${number.format(there)} where ${one.otherwise}: ${one.fates.join("; ") || "no call, since the plan has no such sizes"}.`));
  }

  // 7. The entry points with their calls and their time.
  function entryPoints() {
    const [width, row] = [760, 26];
    const height = 34 + row * data.entries.length;
    const longest = Math.max(...data.entries.map((entry) => entry.seconds), 1e-9);
    const total = sum(data.entries.map((entry) => entry.seconds)) || 1;
    const marks = [text(250, 14, "time"), text(610, 14, "calls")];
    data.entries.forEach((entry, place) => {
      const level = 24 + row * place;
      marks.push(text(4, level + 14, clipped(entry.name, 40), "start", "value"));
      const share = entry.seconds / total;
      marks.push(shape("rect", { class: "f0", x: 250, y: level, width: Math.max(1, (200 * entry.seconds) / longest), height: 18, "data-calls": entry.calls }));
      const words = share < 0.01 ? "less than 1 %" : `${(100 * share).toFixed(0)} %`;
      marks.push(text(456, level + 13, `${time(entry.seconds)}, ${words}`));
      marks.push(text(610, level + 13, number.format(entry.calls), "start", "value"));
    });
    return picture({
      title: "Time and calls", story: `${plural(data.calls, "call")} took ${time(sum(data.entries.map((entry) => entry.seconds)))}.`,
      width, height, x: null, y: null, marks,
    });
  }

  // 8. What padding to a few sizes costs.
  function waste(entry, one) {
    const [width, height] = [340, 200];
    const most = Math.max(0.01, ...one.steps.map((step) => step.share));
    const marks = [];
    const items = [];
    one.steps.forEach((step, place) => {
      const tall = (130 * step.share) / most;
      const left = 20 + 76 * place;
      marks.push(shape("rect", { class: `f${one.graph % 8}`, x: left, y: 160 - tall, width: 56, height: Math.max(1, tall), "data-buckets": step.count }));
      marks.push(text(left + 28, 154 - tall, `${(100 * step.share).toFixed(1)} %`, "middle", "value"));
      marks.push(text(left + 28, 176, plural(step.count, "bucket"), "middle"));
      items.push({ x: left + 28, y: 160 - tall, text: () => step.tops.map(([sizes, calls]) => `${sizes}: ${plural(calls, "call")}`).join("; ") });
    });
    return picture({
      title: `Padding of ${entry.graphs[one.graph]}`,
      story: `The share of the work that is padding, where calls are padded to a few sizes.${one.rounded ? " Sizes that are near were taken together first." : ""}`,
      width, height, x: null, y: null, marks, items,
    });
  }

  // ------------------------------------------------------------------------------------------- tables

  function table({ title, heads, rows }) {
    const id = `table-${names++}`;
    const body = element("tbody");
    const said = element("span", { "aria-live": "polite", class: "count" });
    const more = element("button", { type: "button" }, "Show more");
    const input = element("input", { type: "search", id: `${id}-search` });
    const headings = heads.map((head) => element("th", { scope: "col", "aria-sort": "none" }, element("button", { type: "button" }, head)));
    let shown = SHOWN;
    let order = rows;
    const fill = () => {
      const words = input.value.toLowerCase().split(/\s+/).filter(Boolean);
      const found = words.length
        ? order.filter((row) => { const line = row.join(" ").toLowerCase(); return words.every((word) => line.includes(word)); })
        : order;
      body.replaceChildren(...found.slice(0, shown).map((row) => element("tr", {}, ...row.map(cell))));
      said.textContent = found.length > shown ? `${number.format(shown)} of ${plural(found.length, "row")}` : plural(found.length, "row");
      more.hidden = found.length <= shown;
    };
    input.addEventListener("input", () => { shown = SHOWN; fill(); });
    more.addEventListener("click", () => { shown += 1000; fill(); });
    headings.forEach((heading, place) => heading.firstChild.addEventListener("click", () => {
      const down = heading.getAttribute("aria-sort") === "ascending";
      for (const one of headings) one.setAttribute("aria-sort", "none");
      heading.setAttribute("aria-sort", down ? "descending" : "ascending");
      order = [...rows].sort((one, other) => (down ? -1 : 1) * compared(one[place], other[place]));
      fill();
    }));
    fill();
    return element("div", { class: "listing" },
      element("h3", { id: `${id}-title` }, title),
      element("div", { class: "search" }, element("label", { for: `${id}-search` }, `Search ${title.toLowerCase()}`), input, said),
      element("div", { class: "scroll", tabindex: "0", role: "region", "aria-labelledby": `${id}-title` },
        element("table", {}, element("thead", {}, element("tr", {}, ...headings)), body)),
      more);
  }

  function cell(value) {
    const isNumber = typeof value === "number";
    return element("td", isNumber ? { class: "number" } : {}, isNumber ? number.format(value) : String(value ?? ""));
  }

  function compared(one, other) {
    if (typeof one === "number" && typeof other === "number") return one - other;
    return String(one ?? "").localeCompare(String(other ?? ""), "en", { numeric: true });
  }

  function callsTable(entry) {
    const heads = ["calls", "graph", "milliseconds", ...entry.columns.map((column) => column.text)];
    const rows = [];
    for (let row = 0; row < entry.different; row++) {
      const sizes = entry.columns.map((column) => at(column.sizes, row));
      rows.push([at(entry.counts, row), graphName(entry, at(entry.graph_of, row)), at(entry.micros, row) / 1000, ...sizes]);
    }
    return { title: "Different calls", heads, rows };
  }

  // ------------------------------------------------------------------------------------------- the page

  function drawEntry(place) {
    const entry = data.entries[place];
    const home = document.getElementById(`entry-${place}`);
    const [pictures, tables] = [home.querySelector(".pictures"), home.querySelector(".tables")];
    if (pictures.childElementCount) return;
    const links = [];
    const headed = (title, made) => {
      const id = `entry-${place}-${title.toLowerCase().replaceAll(" ", "-")}`;
      made.setAttribute("id", id);
      const link = element("a", { href: `#${id}` }, title);
      link.addEventListener("click", () => { if (made.tagName === "DETAILS") made.open = true; });
      links.push(element("li", {}, link));
      return made;
    };
    const add = (title, made) => { if (made.length) pictures.append(headed(title, element("h3", {}, title)), ...made); };
    const fold = (title, made) => headed(title, element("details", { class: "fold" },
      element("summary", {}, element("h3", {}, title), element("span", {}, ` (${number.format(made.count)})`)), ...made.nodes));
    const isProven = data.kind === "program" || data.kind === "programs";
    pictures.append(legend(entry));
    add("Axes over the calls", entry.runs ? entry.columns.map((column) => overCalls(entry, column)) : []);
    if (entry.counted) pictures.append(element("p", {}, `The order of ${plural(entry.counted, "call")} is not drawn: they are in no picture over the calls.`));
    add("Sizes that come together", entry.joints.map((pair) => joint(entry, pair)));
    add("Relations", entry.relations.map((one) => relation(entry, one)));
    add("Axes", entry.spans.length ? [spans(entry, isProven)] : []);
    const trials = sum(entry.proof.cells.map((one) => sum(one.slice(-2)))) + sum(entry.proof.without);
    add("Proof", trials ? [proof(entry)] : []);
    if (entry.guards.length) {
      pictures.append(fold("Guards", { count: entry.guards.length, nodes: entry.guards.map((one) => guard(entry, one)) }));
    }
    add("Padding", entry.waste.map((one) => waste(entry, one)));
    for (const one of [callsTable(entry), ...entry.tables]) {
      tables.append(fold(`Table of ${one.title.toLowerCase()}`, { count: one.rows.length, nodes: [table(one)] }));
    }
    home.querySelector(".contents").append(element("ul", {}, ...links));
  }

  function draw() {
    const begin = performance.now();
    const overview = document.getElementById("overview");
    if (data.entries.length) overview.querySelector(".pictures").append(entryPoints());
    overview.querySelector(".tables").append(...data.tables.map(table));
    document.querySelectorAll(".entry").forEach((home, place) => {
      if (home.open) drawEntry(place);
      home.addEventListener("toggle", () => { if (home.open) drawEntry(place); });
    });
    document.querySelectorAll("nav.entries a:not(.plain)").forEach((link, place) => {
      link.addEventListener("click", () => { document.getElementById(`entry-${place}`).open = true; });
    });
    window.addEventListener("beforeprint", () => {
      document.querySelectorAll(".entry").forEach((home, place) => { home.open = true; drawEntry(place); });
      document.querySelectorAll(".fold").forEach((one) => { one.open = true; });
    });
    document.documentElement.dataset.drawn = Math.round(performance.now() - begin);
  }

  draw();
})();
