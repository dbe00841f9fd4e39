"use strict";
// Draws the figures of this page with plotly, in the colours of the theme, and lets sliders and lists change them.
(function () {
  const THEMES = {
    light: {plus: "#1f6fb4", minus: "#d9661f", third: "#2f8f5b", ink: "#222222", quiet: "#8a8a8a", grid: "#e4e7ea", paper: "#ffffff"},
    dark: {plus: "#62aef0", minus: "#f29455", third: "#62c48f", ink: "#e6e8ea", quiet: "#8f979e", grid: "#2f353b", paper: "#14171a"},
  };
  const PRINT_WIDTH = 660;
  const night = window.matchMedia("(prefers-color-scheme: dark)");
  const coarse = window.matchMedia("(pointer: coarse)").matches;
  let printing = false;

  const read = (element) => JSON.parse(element.textContent);
  const palette = () => THEMES[night.matches && !printing ? "dark" : "light"];

  function colour(text) {
    const [name, opacity] = text.slice(1).split("/");
    const hex = palette()[name];
    if (hex === undefined) return text;
    if (opacity === undefined) return hex;
    const part = (k) => parseInt(hex.slice(k, k + 2), 16);
    return `rgba(${part(1)},${part(3)},${part(5)},${opacity})`;
  }

  const plain = (value) => value === null || typeof value === "number";  // arrays of numbers are long, and hold no colours

  function coloured(value) {
    if (typeof value === "string") return value[0] === "@" ? colour(value) : value;
    if (Array.isArray(value)) return plain(value[0]) && plain(value[value.length - 1]) ? value : value.map(coloured);
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([key, one]) => [key, coloured(one)]));
    return value;
  }

  function wholeLayout(own) {
    const {ink, grid, quiet} = palette();
    const axis = {gridcolor: grid, zerolinecolor: quiet, linecolor: quiet, automargin: true, tickfont: {size: 12}};
    const title = {font: {size: 13}, standoff: 8};
    const layout = coloured(own);
    const base = {
      autosize: true, paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", font: {color: ink, size: 13},
      margin: {l: 55, r: 15, t: 32, b: 40}, hovermode: "closest", dragmode: coarse ? false : "zoom",
      legend: {orientation: "h", yref: "container", y: 0, yanchor: "bottom", x: 0, font: {size: 12}},
      modebar: {bgcolor: "rgba(0,0,0,0)", color: quiet, activecolor: ink},
    };
    const merged = {...base, ...layout};
    for (const key of Object.keys(merged))
      if (/^[xy]axis\d*$/.test(key)) merged[key] = {...axis, ...merged[key], title: {...title, ...merged[key].title}};
    if (printing) Object.assign(merged, {autosize: false, width: PRINT_WIDTH});
    return merged;
  }

  const figures = new Map();
  for (const element of document.querySelectorAll("script[data-figure]")) figures.set(element.dataset.figure, read(element));

  function draw() {
    const config = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"],
      showSendToCloud: false, plotlyServerURL: ""};  // there is a button that uploads the figure
    return Promise.all([...figures].map(([id, own]) =>
      Plotly.react(id, coloured(structuredClone(own.data)), wholeLayout(own.layout), config)));
  }

  // ------------------------------------------------------------ sliders and lists

  // Each figure is drawn at most once a frame, and only where it is seen; others take the numbers and are drawn when they are.

  const seen = new Map(), late = new Set();  // figures and whether they are on the screen; figures to draw
  const watch = new IntersectionObserver((entries) => {
    for (const {target, isIntersecting} of entries) {
      seen.set(target.id, isIntersecting);
      if (isIntersecting && late.delete(target.id)) Plotly.redraw(target.id);
    }
  }, {rootMargin: "100px"});

  function put(object, path, value) {
    const keys = path.split("."), last = keys.pop();
    keys.reduce((one, key) => (one[key] ??= {}), object)[last] = value;
  }

  function moveMark(plot, place, changes) {  // the line that marks the moment: plotly would draw all of the figure again
    const shape = plot.layout.shapes[place], path = plot.querySelector(`.shapelayer path[data-index="${place}"]`);
    const axis = plot._fullLayout && plot._fullLayout.xaxis, ends = path && path.getAttribute("d").match(/^M[^,]+,([^L]+)L[^,]+,(.+)$/);
    const shown = changes.visible !== false;
    if (!ends || !shown || shape.visible === false || !axis || !axis.d2p)
      return Plotly.relayout(plot, Object.fromEntries(Object.entries(changes).map(([key, v]) => [`shapes[${place}].${key}`, v])));
    const x = axis._offset + axis.d2p(changes.x0);
    Object.assign(shape, changes);
    Object.assign(plot._fullLayout.shapes[place], changes);
    path.setAttribute("d", `M${x},${ends[1]}L${x},${ends[2]}`);
  }

  function change(id, changes, all) {
    const plot = document.getElementById(id), traces = new Map(), layout = {}, marks = {};
    for (const one of changes) {
      for (const [key, value] of Object.entries(coloured(one.layout || {}))) {
        const mark = key.match(/^shapes\[(\d+)\]\.(\w+)$/);
        if (mark) (marks[mark[1]] ??= {})[mark[2]] = value; else layout[key] = value;
      }
      const set = coloured(one.set || {});
      for (const k of one.traces) traces.set(k, {...traces.get(k), ...set});
    }
    for (const [place, ends] of Object.entries(marks)) moveMark(plot, place, ends);
    if (!traces.size && !Object.keys(layout).length) return;
    if (!all && seen.get(id) === false) {
      for (const [k, set] of traces) for (const [key, value] of Object.entries(set)) put(plot.data[k], key, value);
      for (const [key, value] of Object.entries(layout)) put(plot.layout, key, value);
      late.add(id);
      return;
    }
    const keys = new Set([...traces.values()].flatMap(Object.keys));
    const sets = Object.fromEntries([...keys].map((key) => [key, [...traces.values()].map((set) => set[key])]));
    plot.dataset.drawn = Number(plot.dataset.drawn || 0) + 1;
    if (Object.keys(layout).length) Plotly.update(plot, sets, layout, [...traces.keys()]);
    else Plotly.restyle(plot, sets, [...traces.keys()]);
  }

  const controls = [];
  for (const box of document.querySelectorAll(".control")) {
    const name = box.dataset.scenes;
    const lists = [read(document.querySelector(`script[data-scenes-of="${name}"]`))];
    for (const other of document.querySelectorAll(`script[data-other-scenes="${name}"]`)) lists.push(read(other));
    const input = document.getElementById(name), button = box.querySelector("button"), output = box.querySelector("output");
    const which = box.querySelector("select.lists");
    let waiting = false, timer = null, scenes = lists[0];

    function show(all) {
      waiting = false;
      scenes = lists[which ? Number(which.value) : 0];
      const scene = scenes[Number(input.value)];
      if (output) output.textContent = scene.label;
      input.setAttribute("aria-valuetext", scene.label);
      for (const [id, changes] of Object.entries(scene.figures)) change(id, changes, all === true);
    }
    if (which) which.addEventListener("input", () => soon());
    function soon() {  // at most once a frame
      if (!waiting) { waiting = true; window.requestAnimationFrame(show); }
    }
    function stop() {
      window.clearInterval(timer);
      timer = null;
      button.innerHTML = "&#9654;";
      button.setAttribute("aria-label", "play");
    }
    input.addEventListener("input", soon);
    if (button) {
      button.addEventListener("click", () => {
        if (timer !== null) return stop();
        if (Number(input.value) >= scenes.length - 1) input.value = 0;
        button.innerHTML = "&#10074;&#10074;";
        button.setAttribute("aria-label", "pause");
        soon();
        timer = window.setInterval(() => {
          input.value = Number(input.value) + 1;
          soon();
          if (Number(input.value) >= scenes.length - 1) stop();
        }, 120);
      });
    }
    controls.push(show);
  }

  function redraw() {
    return draw().then(() => controls.forEach((show) => show(true)));
  }

  // ------------------------------------------------------------ theme and print

  night.addEventListener("change", redraw);
  let folded = [];
  window.addEventListener("beforeprint", () => {
    printing = true;
    folded = [...document.querySelectorAll("details:not([open])")].filter((one) => !one.closest(".settings"));
    folded.forEach((one) => { one.open = true; });
    redraw();
  });
  window.addEventListener("afterprint", () => {
    printing = false;
    folded.forEach((one) => { one.open = false; });
    redraw();
  });

  const drawn = draw().then(() => {
    for (const id of figures.keys()) watch.observe(document.getElementById(id));
    document.documentElement.dataset.ready = "yes";
  });
  // On the way back to this page a browser puts the controls where they were, after this script has run.
  window.addEventListener("pageshow", () => drawn.then(() => controls.forEach((show) => show(true))));
})();
