// Draws the page's figures in the reader's colour scheme; on paper always in the light one.
(async () => {
  let figures = {};
  const palettes = JSON.parse(document.getElementById("palettes").textContent);
  const dark = matchMedia("(prefers-color-scheme: dark)");
  const PAPER_WIDTH = 660;
  const DECADE_EMS = 11;
  const WIDE_DECADE_EMS = 14; // labels from 10,000 on

  const rem = () => parseFloat(getComputedStyle(document.documentElement).fontSize);

  const painted = (value, palette) => {
    if (typeof value === "string") return value.replace(/\$([a-z]+)/g, (all, name) => palette[name] || all);
    if (Array.isArray(value)) return typeof value[0] === "number" && typeof value[1] !== "string" ? value : value.map((v) => painted(v, palette));
    if (value && typeof value === "object")
      return Object.fromEntries(Object.entries(value).map(([k, v]) => [k, painted(v, palette)]));
    return value;
  };

  const layoutOf = (given, palette, size, paper, width) => {
    const axis = {
      gridcolor: palette.rule, linecolor: palette.rule, zerolinecolor: palette.rule, tickcolor: palette.rule,
      tickfont: { color: palette.muted }, automargin: true, separatethousands: true,
    };
    const layout = { ...given };
    layout.font = { family: getComputedStyle(document.body).fontFamily, size: 0.78 * size, color: palette.ink };
    layout.paper_bgcolor = layout.plot_bgcolor = "rgba(0,0,0,0)";
    layout.height = given.height * size;
    layout.margin = Object.fromEntries(Object.entries(given.margin).map(([k, v]) => [k, (v * size) / 16]));
    layout.margin.pad = 3;
    layout.hoverlabel = { bgcolor: palette.panel, bordercolor: palette.rule, font: { color: palette.ink } };
    layout.dragmode = matchMedia("(pointer: coarse)").matches ? false : "zoom";
    if (paper) layout.width = PAPER_WIDTH; else layout.autosize = true;
    for (const key of Object.keys(given).filter((k) => /^[xy]axis/.test(k))) {
      layout[key] = { ...axis, ...given[key] };
      const { dtick, range } = given[key];  // 1, 2, 5, 10 ... only where their labels have room
      const ems = range && range[1] > 4 ? WIDE_DECADE_EMS : DECADE_EMS;
      if (dtick === "D2" && range && width / (range[1] - range[0]) < ems * size) layout[key].dtick = 1;
      const standoff = key[0] === "y" ? { standoff: 0.5 * size } : {}; // beside the labels, however wide they are
      if (given[key].title) layout[key].title = { ...standoff, ...given[key].title, font: { color: palette.muted } };
    }
    return layout;
  };

  // Lines and markers grow with the text, so that a 4K screen does not show hairlines.
  const sized = (trace, size) => {
    const scaled = { ...trace };
    if (trace.line) scaled.line = { ...trace.line, width: (trace.line.width * size) / 16 };
    if (trace.marker && trace.marker.size) scaled.marker = { ...trace.marker, size: (trace.marker.size * size) / 16 };
    return scaled;
  };

  const drawOne = (id, paper) => {
    const box = document.getElementById(id);
    if (!box || box.closest("details:not([open])")) return; // drawn when it opens
    const palette = palettes[!paper && dark.matches ? "dark" : "light"];
    const { data, layout } = painted(figures[id], palette);
    const config = { displayModeBar: false, responsive: !paper, showTips: false };
    const width = paper ? PAPER_WIDTH : box.clientWidth;
    box.style.minHeight = "";
    Plotly.react(box, data.map((trace) => sized(trace, rem())), layoutOf(layout, palette, rem(), paper, width), config);
  };

  // What is on the screen first, then the rest one by one, so that the page answers meanwhile; or all at once.
  const draw = (paper, whole) => {
    const boxes = Object.keys(figures).map((id) => document.getElementById(id)).filter((box) => box);
    for (const box of boxes) if (!box.firstChild) box.style.minHeight = `${figures[box.id].layout.height}rem`;
    const inOrder = boxes.sort((a, b) => (a.compareDocumentPosition(b) & Node.DOCUMENT_POSITION_FOLLOWING ? -1 : 1));
    const first = inOrder.filter((box) => whole || box.getBoundingClientRect().top < innerHeight);
    const rest = inOrder.filter((box) => !first.includes(box));
    const one = () => {
      if (rest.length) drawOne(rest.shift().id, paper);
      if (rest.length) setTimeout(one);
      else document.documentElement.dataset.drawn = "yes";
    };
    for (const box of first) drawOne(box.id, paper);
    setTimeout(() => {
      performance.mark("ready"); // the page answers from here on
      one();
    });
  };

  // plotly.js and the figures come packed: 0.5 MB instead of 1.2, and a quarter.
  const unpacked = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (c) => c.charCodeAt(0));
    return new Response(new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"))).text();
  };
  const load = async () => {
    const script = document.createElement("script");
    script.textContent = await unpacked("plotly");
    document.head.append(script);
    figures = JSON.parse(await unpacked("figures"));
    for (const { data } of Object.values(figures))  // an x that an earlier trace has is only its number
      for (const trace of data) if (typeof trace.x === "number") trace.x = data[trace.x].x;
  };
  try {
    await load();
  } catch (error) {
    for (const box of document.querySelectorAll(".chart")) box.textContent = "Charts need a browser of 2023 or newer.";
    document.documentElement.dataset.drawn = "no";
    return;
  }
  draw(false);
  for (const details of document.querySelectorAll("details.run"))
    details.addEventListener("toggle", () => details.open && draw(false));
  dark.addEventListener("change", () => draw(false, true));
  addEventListener("beforeprint", () => draw(true, true));
  addEventListener("afterprint", () => draw(false));
})();
