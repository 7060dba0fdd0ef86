// Draws the panels of the report from the JSON in #data. Every text from the logs goes through textContent.
"use strict";
(() => {
  const data = JSON.parse(document.getElementById("data").textContent);
  const NS = "http://www.w3.org/2000/svg";
  const card = document.getElementById("charts");
  if (!card) return;
  const panels = data.panels.map((panel) => ({ ...panel, plot: document.getElementById("plot-" + panel.key) }));
  const first = data.steps[0], last = Math.max(data.steps[1], data.steps[0] + 1);
  data.runs.forEach((run, index) => { run.index = index; run.hidden = false; });
  const shownRuns = () => data.runs.filter((run) => !run.hidden);
  let range = [first, last];
  let cursor = null;
  let drag = null;

  const element = (name, attributes, parent, text) => {
    const node = document.createElementNS(NS, name);
    for (const key in attributes) node.setAttribute(key, attributes[key]);
    if (text !== undefined) node.textContent = text;
    if (parent) parent.append(node);
    return node;
  };
  const html = (name, className, text) => {
    const node = document.createElement(name);
    node.className = className;
    if (text !== undefined) node.textContent = text;
    return node;
  };
  const whole = (value) => Math.round(value).toLocaleString("en-US");
  const compact = (value) => {
    const size = Math.abs(value);
    if (size >= 1e12) return +(value / 1e12).toPrecision(4) + "T";
    if (size >= 1e9) return +(value / 1e9).toPrecision(4) + "B";
    if (size >= 1e6) return +(value / 1e6).toPrecision(4) + "M";
    if (size >= 1e4) return +(value / 1e3).toPrecision(4) + "k";
    return String(+value.toPrecision(4));
  };
  const colour = (index) => "c" + (index % 8);

  function ticks(low, high, count) {
    const rough = (high - low) / count || 1;
    const power = 10 ** Math.floor(Math.log10(rough));
    const step = power * [1, 2, 5, 10].find((factor) => factor * power >= rough * 0.999);
    const found = [];
    for (let value = Math.ceil(low / step - 1e-9) * step; value <= high + step * 1e-9; value += step) found.push(+value.toPrecision(12));
    return found;
  }

  // The index of the last element that is not above the wanted one, -1 before the first.
  function before(sorted, wanted) {
    let low = 0, high = sorted.length;
    while (low < high) {
      const middle = (low + high) >> 1;
      if (sorted[middle] <= wanted) low = middle + 1; else high = middle;
    }
    return low - 1;
  }

  function nearest(sorted, wanted) {
    const left = before(sorted, wanted);
    if (left < 0) return 0;
    return left + 1 < sorted.length && sorted[left + 1] - wanted < wanted - sorted[left] ? left + 1 : left;
  }

  // The points within the range and one on either side of it, so that lines run on to the edge.
  function visible(curve) {
    const from = Math.max(0, before(curve.steps, range[0]));
    const to = Math.min(curve.steps.length, before(curve.steps, range[1]) + 2);
    return [curve.steps.slice(from, to), curve.values.slice(from, to)];
  }

  function limits(panel) {
    const shown = [];
    for (const run of shownRuns()) {
      const curve = run.curves[panel.key];
      if (!curve) continue;
      const [steps, calm] = visible(curve.smooth);
      const settled = range[0] + (range[1] - range[0]) * data.early;
      const late = panel.key === "loss" ? calm.filter((_, i) => steps[i] >= settled) : calm;
      shown.push(...(late.length ? late : calm));
      if (panel.key === "loss") {
        run.validation.forEach(([step, loss]) => step >= settled && step <= range[1] && shown.push(loss));
      } else {
        const raw = visible(curve.raw)[1].sort((a, b) => a - b);
        if (raw.length) shown.push(raw[Math.floor((raw.length - 1) * 0.99)]);
      }
    }
    if (panel.key === "loss") data.references.forEach(([, value]) => shown.push(value));
    if (!shown.length) return [0, 1];
    let low = panel.key === "loss" ? Infinity : 0, high = -Infinity;
    for (const value of shown) { low = Math.min(low, value); high = Math.max(high, value); }
    const margin = (high - low) * 0.08 || Math.abs(high) * 0.1 || 0.5;
    return panel.key === "loss" ? [low - margin, high + margin] : [low, high + margin];
  }

  function draw(panel) {
    const svg = panel.plot;
    const width = Math.max(svg.clientWidth, 200);
    const narrow = width < 560;
    const tall = panel.large, isLoss = panel.key === "loss";
    const lane = tall && panel.annotations ? 20 : 6;
    const bottom = panel.last ? 22 : 8;
    const height = (tall ? (narrow ? 230 : 300) : (narrow ? 96 : 110)) + lane + bottom;
    const left = narrow ? 40 : 52, right = narrow ? 4 : 10;
    const [low, high] = limits(panel);
    const x = (step) => left + (step - range[0]) / (range[1] - range[0]) * (width - left - right);
    const y = (value) => lane + (high - value) / (high - low) * (height - lane - bottom);
    svg.replaceChildren();
    svg.setAttribute("height", height);
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    const inside = (step) => step >= range[0] && step <= range[1];

    const clip = element("clipPath", { id: "clip-" + panel.key }, element("defs", {}, svg));
    element("rect", { x: left, y: lane, width: width - left - right, height: height - lane - bottom }, clip);
    for (const value of ticks(low, high, tall ? 5 : 3)) {
      element("line", { class: "grid", x1: left, x2: width - right, y1: y(value), y2: y(value) }, svg);
      element("text", { x: left - 7, y: y(value) + 4, "text-anchor": "end" }, svg, compact(value));
    }
    element("line", { class: "axis", x1: left, x2: width - right, y1: height - bottom, y2: height - bottom }, svg);
    const stepTicks = ticks(range[0], range[1], narrow ? 4 : 8).filter(Number.isInteger);
    for (const step of stepTicks) {
      element("line", { class: "axis", x1: x(step), x2: x(step), y1: height - bottom, y2: height - bottom + 4 }, svg);
      if (panel.last) {
        const anchor = x(step) > width - right - 16 ? "end" : "middle";
        element("text", { x: anchor === "end" ? width - right : x(step), y: height - 5, "text-anchor": anchor }, svg, compact(step));
      }
    }

    const clipped = element("g", { "clip-path": `url(#clip-${panel.key})` }, svg);
    shownRuns().forEach((run) => run.annotations.forEach((annotation) => {
      if (annotation.kind === "restart" && annotation.until > annotation.step) {
        const box = { class: "again", x: x(annotation.step), width: x(annotation.until) - x(annotation.step), y: lane, height: height - lane - bottom };
        element("rect", box, clipped);
      }
    }));
    shownRuns().forEach((run) => run.annotations.forEach((annotation) => {
      if (!inside(annotation.step) || annotation.kind === "nan") return;
      element("line", { class: annotation.kind, x1: x(annotation.step), x2: x(annotation.step), y1: lane - 2, y2: height - bottom }, svg);
    }));

    shownRuns().forEach((run) => {
      const curve = run.curves[panel.key];
      if (!curve) return;
      const group = element("g", { class: colour(run.index) }, clipped);
      for (const part of ["raw", "smooth"]) {
        const [steps, values] = visible(curve[part]);
        if (steps.length === 1) {
          element("circle", { class: "dot", cx: x(steps[0]), cy: y(values[0]), r: 3 }, group);
          continue;
        }
        const point = (step, value) => x(step).toFixed(1) + "," + y(value).toFixed(1);
        const stairs = part === "smooth" && curve.held;
        const points = steps.map((step, i) => (stairs && i ? point(step, values[i - 1]) + " " : "") + point(step, values[i]));
        element("polyline", { class: part, points: points.join(" ") }, group);
      }
      const beyond = element("g", { class: colour(run.index) }, svg);
      const [steps, values] = visible(curve.raw);
      let previous = -Infinity;
      steps.forEach((step, i) => {
        if (values[i] <= high || !inside(step) || x(step) - previous < 6) return;
        if (curve.smooth.values[nearest(curve.smooth.steps, step)] > high) return;
        previous = x(step);
        element("path", { class: "beyond", d: `M${x(step) - 3.5},${lane + 6}h7l-3.5,-5z` }, beyond);
      });
      if (isLoss) {
        for (const [step, loss] of run.validation) {
          if (inside(step)) element("circle", { class: "valid", cx: x(step), cy: y(loss), r: narrow ? 3 : 3.6 }, group);
        }
      }
    });

    if (isLoss) {
      for (const [name, value] of data.references) {
        element("line", { class: "reference", x1: left, x2: width - right, y1: y(value), y2: y(value) }, svg);
        const label = { class: "reference-name", x: width - right - 4, y: y(value) - 5, "text-anchor": "end" };
        element("text", label, svg, `${name} ${compact(value)}`);
      }
    }
    if (tall) drawAnnotations(svg, x, inside, lane, height - bottom);
    panel.scale = { x, y, left, right, width, height, lane, bottom };
    panel.overlay = element("g", {}, svg);
  }

  function drawAnnotations(svg, x, inside, lane, floor) {
    for (const run of shownRuns()) {
      for (const step of run.checkpoints) {
        if (inside(step)) element("path", { class: "checkpoint-mark", d: `M${x(step) - 3.5},${floor}h7l-3.5,-6z` }, svg);
      }
      for (const annotation of run.annotations) {
        if (!inside(annotation.step)) continue;
        const at = x(annotation.step), middle = lane / 2 - 1;
        if (annotation.kind === "fault") {
          element("path", { class: "fault-mark", d: `M${at},${middle - 6}l6,6l-6,6l-6,-6z` }, svg);
        } else if (annotation.kind === "restart") {
          element("circle", { class: "restart-mark", cx: at, cy: middle, r: 4.6 }, svg);
        } else {
          element("path", { class: "nan-mark", d: `M${at - 4},${middle - 4}l8,8m0,-8l-8,8` }, svg);
        }
      }
    }
  }

  function readout() {
    const line = document.getElementById("readout");
    line.replaceChildren();
    panels.forEach((panel) => panel.overlay.replaceChildren());
    if (cursor === null) {
      const touch = matchMedia("(pointer: coarse)").matches;
      line.append(html("span", "at", touch ? "Touch the curves to read them" : "Point at the curves to read them, drag to zoom"));
      return;
    }
    line.append(html("b", "", "step " + whole(cursor)));
    shownRuns().forEach((run) => {
      const group = html("span", "");
      if (data.runs.length > 1) {
        const swatch = html("i", "swatch run " + colour(run.index));
        group.append(swatch, document.createTextNode(run.name + "  "));
      }
      const parts = [];
      for (const panel of panels) {
        const curve = run.curves[panel.key];
        if (!curve || cursor > curve.raw.steps.at(-1) || cursor < curve.raw.steps[0]) continue;
        const i = nearest(curve.raw.steps, cursor);
        parts.push(`${panel.short} ${compact(curve.raw.values[i])}`);
        const { x, y, lane } = panel.scale;
        const dot = element("g", { class: colour(run.index) }, panel.overlay);
        const height = Math.max(y(curve.raw.values[i]), lane);
        element("circle", { class: "dot", cx: x(curve.raw.steps[i]), cy: height, r: 3.6 }, dot);
      }
      group.append(document.createTextNode(parts.join("   ")));
      line.append(group);
    });
    const reach = (range[1] - range[0]) * 8 / (panels[0].scale.width - panels[0].scale.left);
    const times = data.runs[0].times;
    if (data.runs.length === 1 && times.steps.length) line.append(html("span", "at", times.texts[Math.max(0, before(times.steps, cursor))]));
    const said = new Set();
    for (const run of shownRuns()) {
      for (const annotation of run.annotations) {
        if (Math.abs(annotation.step - cursor) > reach || said.has(annotation.text)) continue;
        said.add(annotation.text);
        const of = data.runs.length > 1 ? run.name + ": " : "";
        if (said.size <= 3) line.append(html("span", annotation.kind + "-text", of + annotation.text));
      }
    }
    for (const panel of panels) {
      const { x, lane, height, bottom } = panel.scale;
      element("line", { class: "cross", x1: x(cursor), x2: x(cursor), y1: lane, y2: height - bottom }, panel.overlay);
    }
  }

  function redraw() {
    panels.forEach(draw);
    readout();
    for (const button of card.querySelectorAll("[data-share]")) {
      const from = last - (last - first) * Number(button.dataset.share);
      button.setAttribute("aria-pressed", String(Math.abs(from - range[0]) < 0.5 && range[1] === last));
    }
  }

  function zoom(from, to) {
    range = to - from >= 1 ? [Math.max(first, from), Math.min(last, to)] : range;
    redraw();
  }

  function stepAt(panel, event) {
    const { left, right, width } = panel.scale;
    const share = (event.clientX - panel.plot.getBoundingClientRect().left - left) / (width - left - right);
    return range[0] + Math.min(1, Math.max(0, share)) * (range[1] - range[0]);
  }

  for (const panel of panels) {
    panel.plot.addEventListener("pointerdown", (event) => {
      if (event.pointerType === "mouse" && event.button === 0) drag = stepAt(panel, event);
      cursor = Math.round(stepAt(panel, event));
      readout();
    });
    panel.plot.addEventListener("pointermove", (event) => {
      const step = stepAt(panel, event);
      cursor = Math.round(step);
      readout();
      if (drag === null) return;
      for (const { overlay, scale } of panels) {
        const [a, b] = [scale.x(drag), scale.x(step)].sort((one, other) => one - other);
        const box = { class: "select", x: a, width: b - a, y: scale.lane, height: scale.height - scale.lane - scale.bottom };
        element("rect", box, overlay);
      }
    });
    panel.plot.addEventListener("pointerleave", (event) => {
      if (event.pointerType !== "mouse" || drag !== null) return;
      cursor = null;
      readout();
    });
    panel.plot.addEventListener("dblclick", () => zoom(first, last));
    panel.plot.addEventListener("keydown", (event) => {
      const move = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
      if (!move) return;
      event.preventDefault();
      const stride = Math.max(1, Math.round((range[1] - range[0]) / 100));
      cursor = Math.min(range[1], Math.max(range[0], Math.round((cursor ?? range[1]) + move * stride)));
      readout();
    });
  }
  addEventListener("pointerup", (event) => {
    if (drag === null) return;
    const panel = panels[0];
    const [from, to] = [drag, stepAt(panel, event)].sort((one, other) => one - other);
    drag = null;
    if (to - from > (range[1] - range[0]) / 100) zoom(from, to); else readout();
  });
  for (const button of card.querySelectorAll("[data-share]")) {
    button.addEventListener("click", () => zoom(last - (last - first) * Number(button.dataset.share), last));
  }
  for (const button of card.querySelectorAll("[data-run]")) {
    button.addEventListener("click", () => {
      const run = data.runs[Number(button.dataset.run)];
      run.hidden = !run.hidden;
      button.setAttribute("aria-pressed", String(!run.hidden));
      redraw();
    });
  }
  new ResizeObserver(redraw).observe(card);
  matchMedia("print").addEventListener("change", redraw);
  redraw();
})();
