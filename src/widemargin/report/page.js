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

  const parts = (hex) => [1, 3, 5].map((k) => parseInt(hex.slice(k, k + 2), 16));

  function colour(text) {
    const [name, opacity] = text.slice(1).split("/");
    const hex = palette()[name];
    if (hex === undefined) return text;
    return opacity === undefined ? hex : `rgba(${parts(hex)},${opacity})`;
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
    shades = new WeakMap();  // they are in the colours of the theme
    const config = {responsive: true, displaylogo: false, modeBarButtonsToRemove: ["select2d", "lasso2d"],
      showSendToCloud: false, plotlyServerURL: ""};  // there is a button that uploads the figure
    return Promise.all([...figures].map(([id, own]) =>
      Plotly.react(id, coloured(structuredClone(own.data)), wholeLayout(own.layout), config)));
  }

  // ------------------------------------------------------------ sliders and lists

  // Plotly lays out and draws all of a figure for every change, which takes 10 to 30 ms. So while a slider moves, only what is seen
  // of it is moved: lines, points, shading and marks that plotly has drawn before (sketch). Plotly draws the figure when the slider
  // rests, when the pointer is over it (labels come from plotly's own numbers), and where it is not as expected. Figures outside of
  // the screen take the numbers and are drawn when they come.

  const REST = 250;  // ms
  const seen = new Map(), late = new Set();  // figures and whether they are on the screen; figures that plotly has to draw
  let resting = null;

  function catchUp(id) {
    late.delete(id);
    const plot = document.getElementById(id);
    plot.dataset.drawn = Number(plot.dataset.drawn || 0) + 1;
    Plotly.redraw(plot);
  }

  function rest() {  // one figure at a time, so that the next move need not wait for all of them
    const id = [...late].find((one) => seen.get(one) !== false);
    resting = null;
    if (id === undefined) return;
    catchUp(id);
    resting = window.setTimeout(rest, 20);
  }

  const watch = new IntersectionObserver((entries) => {
    for (const {target, isIntersecting} of entries) {
      seen.set(target.id, isIntersecting);
      if (isIntersecting && late.has(target.id)) catchUp(target.id);
    }
  }, {rootMargin: "100px"});

  function put(object, path, value) {
    const keys = path.split("."), last = keys.pop();
    keys.reduce((one, key) => (one[key] ??= {}), object)[last] = value;
  }

  const hidden = new Map();  // marks that are not on the axis at this moment, and where they belong

  function moveMark(plot, place, changes) {  // the line that marks the moment
    const shape = plot.layout.shapes[place], name = `${plot.id} ${place}`, back = hidden.get(name);
    const known = plot._fullLayout && plot._fullLayout.shapes[place], axis = known && plot._fullLayout.xaxis;
    const path = plot.querySelector(`.shapelayer path[data-index="${place}"]`) || (back && back.parent.isConnected && back.path);
    const ends = path && path.getAttribute("d").match(/^M[^,]+,([^L]+)L[^,]+,(.+)$/), shown = changes.visible !== false;
    if (!ends || !axis || !axis.d2p)
      return Plotly.relayout(plot, Object.fromEntries(Object.entries(changes).map(([key, v]) => [`shapes[${place}].${key}`, v])));
    Object.assign(shape, changes);
    Object.assign(known, changes);
    if (shown) {
      const x = axis._offset + axis.d2p(changes.x0);
      path.setAttribute("d", `M${x},${ends[1]}L${x},${ends[2]}`);
      if (hidden.delete(name) && !path.isConnected) back.parent.append(path);
    } else if (path.isConnected) {
      hidden.set(name, {path, parent: path.parentNode});
      path.remove();
    }
  }

  const pixels = (value) => Math.round(100 * value) / 100;

  function sketchLine(node, trace, x, y, {xaxis, yaxis}) {  // a path for each piece, as plotly has it
    const paths = [...node.querySelectorAll(".js-line")], form = (trace.line || {}).shape || "linear", pieces = [];
    if (!paths.length || (form !== "linear" && form !== "hv")) return false;
    let begun = false;
    for (let k = 0; k < x.length; k += 1) {
      if (x[k] === null || y[k] === null) { begun = false; continue; }
      const across = pixels(xaxis.d2p(x[k])), down = pixels(yaxis.d2p(y[k]));
      if (!begun) pieces.push(`M${across},${down}`);
      else pieces[pieces.length - 1] += form === "hv" ? `H${across}V${down}` : `L${across},${down}`;
      begun = true;
    }
    while (paths.length < pieces.length) {
      paths.push(paths[0].cloneNode());
      paths[0].parentNode.append(paths[paths.length - 1]);
    }
    paths.forEach((path, k) => path.setAttribute("d", pieces[k] || "M0,0"));
    return true;
  }

  function sketchPoints(node, set, x, y, {xaxis, yaxis}) {
    const points = node.querySelectorAll(".point"), sizes = set["marker.size"], colours = set["marker.color"];
    if (points.length !== x.length || [sizes, colours].some((one) => one !== undefined && !Array.isArray(one))) return false;
    points.forEach((point, k) => {
      point.setAttribute("transform", `translate(${pixels(xaxis.d2p(x[k]))},${pixels(yaxis.d2p(y[k]))})`);
      const r = sizes && pixels(sizes[k] / 2);
      if (sizes) point.setAttribute("d", `M${r},0A${r},${r} 0 1,1 0,-${r}A${r},${r} 0 0,1 ${r},0Z`);
      if (colours) Object.assign(point.style, {fill: colours[k], fillOpacity: 1});
    });
    return true;
  }

  let shades = new WeakMap();  // rows of numbers, and the image of them

  function sketchShades(plot, trace, z) {
    const images = plot.querySelectorAll(".heatmaplayer image");
    if (images.length !== 1) return false;
    if (!shades.has(z)) {
      const canvas = document.createElement("canvas"), {zmin, zmax} = trace, scale = trace.colorscale.map(([at, hex]) => [at, parts(hex)]);
      canvas.width = z[0].length;
      canvas.height = z.length;
      const context = canvas.getContext("2d"), image = context.createImageData(canvas.width, canvas.height);
      let at = 0;
      for (const row of [...z].reverse()) {  // the first row is the lowest
        for (const value of row) {
          const part = Math.min(Math.max((value - zmin) / (zmax - zmin), 0), 1), next = Math.max(1, scale.findIndex(([end]) => part <= end));
          const [[a, from], [b, to]] = [scale[next - 1], scale[next]], share = (part - a) / (b - a);
          for (let c = 0; c < 3; c += 1) image.data[at + c] = from[c] + share * (to[c] - from[c]);
          image.data[at + 3] = 255;
          at += 4;
        }
      }
      context.putImageData(image, 0, 0);
      shades.set(z, canvas.toDataURL());
    }
    images[0].setAttributeNS("http://www.w3.org/1999/xlink", "xlink:href", shades.get(z));
    return true;
  }

  const SKETCHED = new Set(["x", "y", "z", "text", "marker.size", "marker.color"]);

  function sketch(plot, traces) {  // whether all of it could be moved
    const full = plot._fullLayout;
    if (!full || !plot._fullData || plot.matches(":hover")) return false;
    for (const [k, set] of traces) {
      const trace = plot.data[k], {uid} = plot._fullData[k], x = set.x || trace.x, y = set.y || trace.y;
      if (trace.xaxis || trace.yaxis || Object.keys(set).some((key) => !SKETCHED.has(key))) return false;
      if (trace.type === "heatmap") {
        if (!sketchShades(plot, trace, set.z || trace.z)) return false;
        continue;
      }
      const node = plot.querySelector(`.scatterlayer .trace${uid}`), lines = trace.mode === "lines";
      if (trace.type !== "scatter" || !(lines || trace.mode === "markers")) return false;
      if (!(node && node.querySelector("path")) && x.every((one) => one === null)) continue;  // nothing is there, nothing comes
      if (!node || !(lines ? sketchLine(node, trace, x, y, full) : sketchPoints(node, set, x, y, full))) return false;
    }
    return true;
  }

  function change(id, changes, all, quick) {
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
    const arranged = Object.keys(layout).length > 0;
    if (!traces.size && !arranged) return;
    const away = !all && seen.get(id) === false, sketched = !all && !away && quick && !arranged && sketch(plot, traces);
    if (away || sketched) {
      for (const [k, set] of traces) for (const [key, value] of Object.entries(set)) put(plot.data[k], key, value);
      for (const [key, value] of Object.entries(layout)) put(plot.layout, key, value);
      late.add(id);
      if (!sketched) return;
      window.clearTimeout(resting);
      resting = window.setTimeout(rest, REST);
      return;
    }
    const keys = new Set([...traces.values()].flatMap(Object.keys));
    const sets = Object.fromEntries([...keys].map((key) => [key, [...traces.values()].map((set) => set[key])]));
    late.delete(id);
    plot.dataset.drawn = Number(plot.dataset.drawn || 0) + 1;
    if (arranged) Plotly.update(plot, sets, layout, [...traces.keys()]);
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
      for (const [id, changes] of Object.entries(scene.figures)) change(id, changes, all === true, input.type === "range");
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
