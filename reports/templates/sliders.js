(function () {
  "use strict";

  // Numbers as reports/_numbers.py prints them; a tie goes to the even digit, as Python has it.
  function fixed(value, decimals) {
    const exact = value.toFixed(Math.min(100, decimals + 60));
    const [whole, rest] = exact.split(".");
    const tie = rest && /^50*$/.test(rest.slice(decimals));
    const last = decimals ? rest && rest[decimals - 1] : whole.slice(-1);
    if (tie && Number(last) % 2 === 0) return decimals ? `${whole}.${rest.slice(0, decimals)}` : whole;
    return value.toFixed(decimals);
  }

  function number(value, digits = 3) {
    if (value === null || !Number.isFinite(value)) return "-";
    if (value === 0) return "0";
    const exponent = Number(value.toExponential(digits - 1).split("e")[1]);
    const text = fixed(value, Math.min(Math.max(0, digits - 1 - exponent), 9));
    const [whole, rest] = text.split(".");
    const grouped = whole.replace(/\B(?=(\d{3})+$)/g, ",");
    return rest === undefined ? grouped : `${grouped}.${rest}`;
  }

  function share(value, goal) {
    if (value === null || !Number.isFinite(value)) return "-";
    const digits = goal ? goal.digits : 1;
    if (value > 0 && value < 0.5 / 10 ** (digits + 2)) return `<${fixed(1 / 10 ** digits, digits)}%`;
    const unit = 10 ** (digits + 2);
    const rounded = Math.floor(value * unit + 0.5 + 1e-9);
    const ends = goal ? [1, goal.share] : [1];
    const crossed = ends.some((end) => value < end && rounded >= Math.round(end * unit));
    return `${fixed(((crossed ? Math.floor(value * unit) : rounded) * 100) / unit, digits)}%`;
  }

  function limit(seconds) {
    const plain = (value) => String(Number(value.toPrecision(6)));
    return seconds < 1 ? `${plain(seconds * 1000)} ms` : `${plain(seconds)} s`;
  }

  // Where attainment crosses a goal, as harness/sweep/crossing.py finds it.
  function falling(values, weights) {
    const blocks = [];
    values.forEach((value, i) => {
      blocks.push({ sum: value * weights[i], weight: weights[i], n: 1 });
      while (blocks.length > 1) {
        const [before, last] = blocks.slice(-2);
        if (before.sum / before.weight >= last.sum / last.weight) break;
        blocks.splice(-2, 2, { sum: before.sum + last.sum, weight: before.weight + last.weight, n: before.n + last.n });
      }
    });
    return blocks.flatMap((block) => Array(block.n).fill(block.sum / block.weight));
  }

  function crossing(rates, shares, weights, goal) {
    const fitted = falling(shares, weights);
    const keeps = fitted.map((value) => value >= goal - 1e-12);
    const left = keeps.findIndex((kept, i) => i + 1 < keeps.length && kept !== keeps[i + 1]);
    if (left < 0) return { at: null, side: keeps[0] ? "above" : "below" };
    const logit = (value, n) => {
      const inside = Math.min(Math.max(value, 0.5 / n), 1 - 0.5 / n);
      return Math.log(inside / (1 - inside));
    };
    const x = [rates[left], rates[left + 1]].map(Math.log);
    const y = [logit(fitted[left], weights[left]), logit(fitted[left + 1], weights[left + 1])];
    const wanted = logit(goal, Math.max(weights[left], weights[left + 1]));
    const part = y[0] === y[1] ? 0 : Math.min(Math.max((wanted - y[0]) / (y[1] - y[0]), 0), 1);
    return { at: Math.exp(x[0] + part * (x[1] - x[0])), between: [rates[left], rates[left + 1]] };
  }

  const sum = (values) => values.reduce((total, value) => total + value, 0);
  const mean = (values) => (values.length ? sum(values) / values.length : null);

  // A run at the place of the sliders: shares and goodput (req/s).
  function score(run, state, columns) {
    const scaled = state.factor !== null;
    let met = scaled ? run.scaled[state.factor] : 0;
    if (!scaled) {
      let cell = 0;
      run.at.forEach((gap, i) => {
        cell += gap;
        if (Math.floor(cell / columns) <= state.at[0] && cell % columns <= state.at[1]) met += run.counts[i];
      });
    }
    const alone = run.alone.map(({ n, counts, scaled: own }, axis) => {
      if (!n || (scaled ? !own : state.at[axis] >= counts.length)) return null;
      return (scaled ? own[state.factor] : sum(counts.slice(0, state.at[axis] + 1))) / n;
    });
    return { attainment: met / run.n, goodput: run.per === null ? null : (met / run.n) * run.per, alone };
  }

  function point(content, state, columns) {
    const found = content.runs.map((run) => score(run, state, columns));
    const alone = [0, 1].map((axis) => {
      const known = found.map((one) => one.alone[axis]).filter((value) => value !== null);
      return mean(known);
    });
    return { attainment: mean(found.map((f) => f.attainment)), goodput: mean(found.map((f) => f.goodput).filter((value) => value !== null)), alone };
  }

  function runsOf(content) {
    return content.overloaded ? `${content.runs.length} (${content.overloaded} overloaded)` : String(content.runs.length);
  }

  function quoted(text) {
    if (!text) return "''";
    return /^[\w@%+=:,./-]+$/.test(text) ? text : `'${text.replaceAll("'", `'"'"'`)}'`;
  }

  function cellsOf(texts) {
    return texts.map((text, i) => {
      const cell = document.createElement(i ? "td" : "th");
      if (i) cell.className = "n";
      else cell.scope = "row";
      cell.textContent = text;
      return cell;
    });
  }

  function start(box, content) {
    const part = (name) => box.querySelector(`[data-part="${name}"]`);
    const inputs = ["ttft", "tpot", "scale"].map((name) => part(name));
    const one = content.factors.indexOf(1);
    const state = { at: content.axes.map((axis) => axis.start), factor: null };
    const bounded = (axis) => state.at[axis] < content.axes[axis].limits.length;
    const value = (axis) => content.axes[axis].limits[state.at[axis]] * (state.factor === null ? 1 : content.factors[state.factor]);

    function bounds() {
      const texts = content.axes.map((axis, i) => (bounded(i) ? `${axis.metric}=${axis.limits[state.at[i]]}` : ""));
      return texts.filter((text) => text);
    }

    function slo() {
      return [...bounds(), ...(content.rest ? [content.rest] : [])].join(",");
    }

    function command() {
      const scale = state.factor === null ? "" : ` --scale ${content.factors[state.factor]}`;
      return `${content.command} --slo ${quoted(slo())}${scale}${content.goal_option}`;
    }

    function name() {
      const text = slo() || "no bound";
      return state.factor === null ? text : `${text} times ${content.factors[state.factor]}`;
    }

    function shown() {
      content.axes.forEach((axis, i) => {
        if (!inputs[i]) return;
        inputs[i].value = state.at[i];
        const text = bounded(i) ? limit(value(i)) : "no bound";
        inputs[i].setAttribute("aria-valuetext", text);
        part(`${axis.metric}-value`).textContent = text;
      });
      if (inputs[2]) {
        const factor = content.factors[state.factor === null ? one : state.factor];
        inputs[2].value = state.factor === null ? one : state.factor;
        inputs[2].setAttribute("aria-valuetext", `times ${factor}`);
        part("scale-value").textContent = `times ${factor}`;
      }
    }

    function ofRun() {
      const goal = state.factor === null ? content.goals[0] : undefined;
      const found = score(content.systems[0].points[0].runs[0], state, columns);
      const rows = [[name(), share(found.attainment, goal), number(found.goodput)]];
      content.axes.forEach((axis, i) => {
        if (found.alone[i] === null) return;
        const scale = state.factor === null ? "" : ` times ${content.factors[state.factor]}, alone`;
        rows.push([`- ${axis.metric}=${axis.limits[state.at[i]]}${scale}`, share(found.alone[i], goal), ""]);
      });
      const kept = content.goals.map((g) => `goal ${g.text} ${found.attainment >= g.share ? "reached" : "missed"}`);
      const result = `${name()}: ${share(found.attainment, goal)} of the requests meet it, goodput ${number(found.goodput)} req/s`;
      return { rows, result: content.open ? `${result}.` : `${result}, ${kept.join(", ")}.` };
    }

    function ofSystems() {
      const rows = [];
      const sentences = [];
      const curves = content.systems.map((system) => {
        const points = system.points.map((p) => point(p, state, columns));
        points.forEach((p, i) => {
          const head = content.named ? `${system.name}: ` : "";
          rows.push([`${head}${number(system.points[i].rate)}`, runsOf(system.points[i]), share(p.attainment),
            number(p.goodput), ...p.alone.map((a) => share(a))]);
        });
        const found = content.open ? [] : content.goals.map((goal) => {
          const where = content.named ? `${system.name}: ` : "";
          if (points.length === 1) {
            const reached = points[0].attainment >= goal.share - 1e-12;
            sentences.push(`${where}${where ? "goal" : "Goal"} ${goal.text} ${reached ? "reached" : "missed"}`);
            return { goal, at: null };
          }
          const cross = crossing(system.points.map((p) => p.rate), points.map((p) => p.attainment), system.points.map((p) => p.requests), goal.share);
          const per = system.share === 1 || cross.at === null ? "" : ` (${number(cross.at / system.share)} per GPU)`;
          sentences.push(cross.at === null
            ? `${where}${where ? "all" : "All"} rates lie ${cross.side} ${goal.text}`
            : `${where}${goal.text} is crossed near ${number(cross.at)} req/s${per}, between ${number(cross.between[0])} and ${number(cross.between[1])}`);
          return { goal, at: cross.at };
        });
        return { points, found };
      });
      return { rows, result: [`${name()}.`, ...sentences.map((s) => `${s}.`)].join(" "), curves };
    }

    function tell(key, change) {
      document.dispatchEvent(new CustomEvent("bench:figure", { detail: { key, change } }));
    }

    function redraw(curves) {
      if (content.plane) {
        const there = bounded(0) && bounded(1);
        tell(content.plane.key, (figure) => {
          for (const trace of figure.data.filter((each) => each.name === content.plane.name)) {
            trace.x = there ? [value(0)] : [];
            trace.y = there ? [value(1)] : [];
          }
        });
      }
      if (!content.curve || !curves) return;
      const percent = (number) => (number === null ? null : number * 100);
      tell(content.curve.key, (figure) => {
        curves.forEach(({ points, found }, i) => {
          const traces = content.curve.traces[i];
          figure.data[traces[0]].y = points.map((p) => percent(p.attainment));
          figure.data[traces[1]].y = points.map((p) => percent(p.alone[0]));
          figure.data[traces[2]].y = points.map((p) => percent(p.alone[1]));
          const crossed = found.filter((f) => f.at !== null);
          figure.data[traces[3]].x = crossed.map((f) => f.at / content.systems[i].share);
          figure.data[traces[3]].y = crossed.map((f) => f.goal.share * 100);
        });
      });
    }

    const columns = content.axes[1].limits.length + 1;

    function update() {
      shown();
      const found = content.one ? ofRun() : ofSystems();
      part("result").textContent = found.result;
      part("rows").replaceChildren(
        ...found.rows.map((texts) => {
          const row = document.createElement("tr");
          row.append(...cellsOf(texts));
          return row;
        }),
      );
      part("command").textContent = command();
      redraw(found.curves);
    }

    let waiting = false;
    function soon() {
      if (waiting) return;
      waiting = true;
      requestAnimationFrame(() => {
        waiting = false;
        update();
      });
    }

    inputs.forEach((input, i) => {
      if (!input) return;
      input.addEventListener("input", () => {
        const place = Number(input.value);
        if (i < 2) {
          state.at[i] = place;
          state.factor = null;
        } else {
          state.at = content.axes.map((axis) => axis.start);
          state.factor = place === one ? null : place;
        }
        soon();
      });
    });
    part("back").addEventListener("click", () => {
      state.at = content.axes.map((axis) => axis.start);
      state.factor = null;
      soon();
    });
    box.hidden = false;
    update();
  }

  document.addEventListener("bench:content", ({ detail }) => {
    for (const box of document.querySelectorAll("[data-sliders]")) {
      const found = detail.figures.find((figure) => figure.key === box.dataset.sliders);
      if (found) start(box, found.sliders);
    }
  });
})();
