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

  const controls = [];
  for (const box of document.querySelectorAll(".control")) {
    const name = box.dataset.scenes;
    const scenes = read(document.querySelector(`script[data-scenes-of="${name}"]`));
    const input = document.getElementById(name), button = box.querySelector("button"), output = box.querySelector("output");
    let waiting = false, timer = null;

    function show() {
      waiting = false;
      const scene = scenes[Number(input.value)];
      if (output) output.textContent = scene.label;
      input.setAttribute("aria-valuetext", scene.label);
      for (const [id, changes] of Object.entries(scene.figures))
        for (const {traces, set, layout} of changes) {
          const spread = Object.fromEntries(Object.entries(coloured(set || {})).map(([key, v]) => [key, traces.map(() => v)]));
          Plotly.update(id, spread, coloured(layout || {}), traces);
        }
    }
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
        }, 180);
      });
    }
    controls.push(show);
  }

  function redraw() {
    return draw().then(() => controls.forEach((show) => show()));
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

  const drawn = draw().then(() => { document.documentElement.dataset.ready = "yes"; });
  // On the way back to this page a browser puts the controls where they were, after this script has run.
  window.addEventListener("pageshow", () => drawn.then(() => controls.forEach((show) => show())));
})();
