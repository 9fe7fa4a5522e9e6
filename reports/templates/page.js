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

  function draw(box) {
    const { data, layout } = themed(box.dataset.figure);
    box.dataset.drawn = "yes";
    return Plotly.react(box, data, layout, { displayModeBar: false, responsive: !printing });
  }

  // one figure at a time, so that the page can be read, scrolled and used in between
  const waiting = new Set();
  function drawSoon(box) {
    if (waiting.add(box).size === 1) setTimeout(drawNext);
  }

  function drawNext() {
    const [box] = waiting;
    waiting.delete(box);
    try {
      if (!box.dataset.drawn) draw(box);
    } finally {
      if (waiting.size) setTimeout(drawNext);
    }
  }

  function redraw(all) {
    for (const box of boxes) if (all || box.dataset.drawn) draw(box);
  }

  document.addEventListener("bench:figure", ({ detail: { key, change } }) => {
    const figure = figures.get(key);
    if (!figure) return;
    change(figure);
    boxes.filter((box) => box.dataset.figure === key && box.dataset.drawn).forEach(draw);
  });

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

  async function start() {
    const [data, library] = await Promise.all([unpacked("data"), unpacked("plotly")]);
    const content = JSON.parse(data);
    content.figures.forEach((f) => figures.set(f.key, f));
    atNight = content.dark;
    document.dispatchEvent(new CustomEvent("bench:content", { detail: content }));
    if (library !== null) {
      const script = document.createElement("script");
      script.nonce = nonce;
      script.textContent = library;
      document.head.append(script);
    }
    const seen = new IntersectionObserver(
      (entries) => {
        for (const entry of entries) {
          if (entry.isIntersecting) {
            seen.unobserve(entry.target);
            drawSoon(entry.target);
          }
        }
      },
      { rootMargin: "300px" },
    );
    boxes.forEach((box) => seen.observe(box));
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
  }

  if (boxes.length || document.querySelector("[data-sliders]")) start().catch((error) => say(error.message));
})();
