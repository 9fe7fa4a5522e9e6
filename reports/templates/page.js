(function () {
  "use strict";
  const nonce = document.currentScript.nonce;
  const figures = new Map();
  let atNight = {};
  const boxes = Array.from(document.querySelectorAll("[data-figure]"));
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const themes = {
    light: { ink: "#1b1f24", paper: "#ffffff", grid: "#d9dde2" },
    dark: { ink: "#e6e8eb", paper: "#15181c", grid: "#353b43" },
  };
  let printing = false;

  function say(text) {
    for (const box of boxes) {
      box.textContent = text;
      box.classList.add("missing");
    }
  }

  function atNightOf(figure) {
    let text = JSON.stringify(figure);
    for (const [light, instead] of Object.entries(atNight)) text = text.replaceAll(light, instead);
    return JSON.parse(text);
  }

  function themed(key) {
    const night = !printing && dark.matches;
    const theme = night ? themes.dark : themes.light;
    const { data, layout } = night ? atNightOf(figures.get(key)) : structuredClone(figures.get(key));
    layout.font.color = theme.ink;
    layout.paper_bgcolor = layout.plot_bgcolor = theme.paper;
    layout.hoverlabel = { namelength: -1, bgcolor: theme.paper, font: { color: theme.ink } };
    for (const key of Object.keys(layout)) {
      if (/^[xy]axis/.test(key)) layout[key].gridcolor = theme.grid;
    }
    if (printing) {
      layout.width = 680;
    } else {
      layout.autosize = true;
    }
    for (const note of layout.annotations || []) note.bgcolor = theme.paper;
    return { data, layout };
  }

  const CHARACTER = 7, LINE = 16, APART = 8; // pixels

  // words in lines of at most so many pixels
  function broken(text, pixels) {
    const most = Math.max(8, Math.floor(pixels / CHARACTER));
    const lines = text.split("<br>").flatMap((line) =>
      line.split(" ").reduce((found, word) => {
        const last = found.length - 1;
        if (last >= 0 && `${found[last]} ${word}`.length <= most) found[last] += ` ${word}`;
        else found.push(word);
        return found;
      }, []),
    );
    return lines.join("<br>");
  }

  // ticks whose labels have room beside one another
  function thinned(axis, pixels) {
    if (!axis.tickvals || !axis.ticktext) return;
    const at = (value) => ((axis.type === "log" ? Math.log10(value) : value) - axis.range[0]) / (axis.range[1] - axis.range[0]);
    let free = -Infinity;
    const kept = axis.tickvals.map((value, i) => {
      const middle = at(value) * pixels, half = (axis.ticktext[i].length * CHARACTER + APART) / 2;
      if (middle - half < free) return false;
      free = middle + half;
      return true;
    });
    axis.tickvals = axis.tickvals.filter((_, i) => kept[i]);
    axis.ticktext = axis.ticktext.filter((_, i) => kept[i]);
  }

  // names and titles in lines that the panels, `room` pixels wide, have place for; a mark has at least half of that
  function fit({ data, layout }, room) {
    for (const [key, axis] of Object.entries(layout)) {
      if (!/^xaxis/.test(key)) continue;
      if (axis.title && axis.title.text) axis.title.text = broken(axis.title.text, room);
      thinned(axis, room);
    }
    for (const trace of data) if (trace.name) trace.name = broken(trace.name, room - 40);
    const above = {};
    for (const note of (layout.annotations || []).sort((one, other) => one.y - other.y)) {
      note.text = broken(note.text, room / 2);
      if (!/domain$/.test(note.yref)) continue;
      const place = note.yref + note.yanchor;
      note.yshift = (note.yshift || 0) + (above[place] || 0);
      above[place] = (above[place] || 0) + (note.text.split("<br>").length - 1) * LINE;
    }
  }

  // labels of single points that lie on another text
  function uncover(box) {
    const taken = [];
    for (const text of box.querySelectorAll(".annotation-text, .textpoint text")) {
      const r = text.getBoundingClientRect();
      const hits = taken.some((o) => r.left < o.right && o.left < r.right && r.top < o.bottom && o.top < r.bottom);
      if (hits && text.closest(".textpoint")) text.style.display = "none";
      else taken.push(r);
    }
  }

  function draw(box) {
    const width = printing ? 680 : box.clientWidth;
    if (!width) return void delete box.dataset.drawn; // folded: drawn when it is opened
    let room = width - 94, more = 0, planned;
    const put = () => {
      const figure = themed(box.dataset.figure), { height, margin } = figure.layout;
      fit(figure, room);
      planned = height - margin.t - margin.b;
      figure.layout.height = height + more;
      figure.layout.minreducedheight = 2; // else plotly keeps 64 pixels for the panels and lets margins overlap them
      box.style.height = `${height + more}px`;
      return Plotly.react(box, figure.data, figure.layout, { displayModeBar: false, responsive: false });
    };
    box.dataset.drawn = width;
    let done = put();
    const { _size: panels } = box._fullLayout;
    if (panels.w < width - 110) { // labels took more than was thought
      room = panels.w;
      done = put();
    }
    for (let taken, tries = 0; tries < 3 && (taken = planned - box._fullLayout._size.h) > LINE; tries++) {
      more += taken; // names and titles in many lines took it from the panels
      done = put();
    }
    uncover(box);
    const button = box.parentElement.querySelector("[data-svg]");
    if (button) button.hidden = false;
    return done;
  }

  // in their order, with a moment for the reader between two of them
  async function drawAll(wanted) {
    for (const box of wanted) {
      if (!box.dataset.drawn) draw(box);
      await new Promise((next) => setTimeout(next));
    }
  }

  function redraw(all) {
    for (const box of boxes) if (all || box.dataset.drawn) draw(box);
  }

  async function unpacked(id) {
    const element = document.getElementById(id);
    if (!element || element.type !== "text/plain") return element && element.textContent;
    if (typeof DecompressionStream === "undefined") {
      throw new Error("This browser cannot unpack the drawing library; make the report again with --plain, or read the tables.");
    }
    const packed = atob(element.textContent.trim());
    const bytes = new Uint8Array(packed.length);
    for (let i = 0; i < bytes.length; i++) bytes[i] = packed.charCodeAt(i);
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  }

  // what is folded is drawn when it is opened, by hand or by a link to it
  for (const details of document.querySelectorAll("details.section")) {
    details.addEventListener("toggle", () => {
      if (details.open && figures.size) drawAll(boxes.filter((box) => details.contains(box)));
    });
  }
  function unfold() {
    const target = location.hash && document.getElementById(decodeURIComponent(location.hash.slice(1)));
    const details = target && target.closest("details.section");
    if (details) details.open = true;
  }
  addEventListener("hashchange", unfold);
  unfold();

  async function start() {
    const [data, library] = await Promise.all([unpacked("data"), unpacked("plotly")]);
    const content = JSON.parse(data);
    content.figures.forEach((f) => figures.set(f.key, f));
    atNight = content.dark;
    if (library !== null) {
      const script = document.createElement("script");
      script.nonce = nonce;
      script.textContent = library;
      document.head.append(script);
    }
    document.querySelectorAll("[data-svg]").forEach((button) => {
      button.addEventListener("click", () => {
        const box = boxes.find((each) => each.dataset.figure === button.dataset.svg);
        Plotly.downloadImage(box, { format: "svg", filename: button.dataset.svg, width: box.clientWidth, height: box.clientHeight });
      });
    });
    let resized;
    const refit = () => boxes.filter((box) => box.dataset.drawn && +box.dataset.drawn !== box.clientWidth).forEach(draw);
    addEventListener("resize", () => {
      if (!resized) refit(); // at once, for a window that is made and then given its size; then when it is at rest
      clearTimeout(resized);
      resized = setTimeout(() => { resized = 0; refit(); }, 200);
    });
    dark.addEventListener("change", () => redraw(false));
    addEventListener("beforeprint", () => {
      printing = true;
      document.querySelectorAll("details").forEach((d) => { d.dataset.was = d.open ? "open" : ""; d.open = true; });
      redraw(true);
    });
    addEventListener("afterprint", () => {
      printing = false;
      document.querySelectorAll("details").forEach((d) => { d.open = d.dataset.was === "open"; });
      redraw(false);
    });
    await drawAll(boxes);
  }

  // a page is loaded when its frames are: an open one holds that back until the figures stand on the page, so that a
  // screenshot, a print or a saved copy that is taken of the loaded page has them
  function whileLoading(work) {
    const frame = document.createElement("iframe");
    frame.hidden = true;
    document.body.append(frame);
    frame.contentDocument.open();
    work.finally(() => {
      frame.contentDocument.close();
      frame.remove();
    });
  }

  if (boxes.length) whileLoading(start().catch((error) => say(error.message)));
})();
