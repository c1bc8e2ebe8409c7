"use strict";
// The charts are in the order of their elements. Colours of the theme are in the style sheet.
const figures = JSON.parse(document.getElementById("figures").textContent);
const elements = [...document.querySelectorAll(".chart")];
// px: half and all of the width between the margins of A4 or Letter paper
const PAPER = { narrow: 335, wide: 690 };
const CONFIG = {
  displaylogo: false,
  // without a mouse, the bar would always cover the legend
  displayModeBar: matchMedia("(hover: none)").matches ? false : "hover",
  modeBarButtons: [["toImage", "zoom2d", "pan2d", "resetScale2d"]],
};

function size(figure, width) {
  const labels = figure.layout.showlegend === false ? [] : figure.data.filter((trace) => trace.type === "scatter" && trace.showlegend !== false);
  const longest = Math.max(0, ...labels.map((trace) => trace.name.length));
  const columns = Math.max(1, Math.floor((width - 60) / (7 * longest + 56)));
  const legend = 20 * Math.ceil(labels.length / columns);
  return {
    width,
    height: figure.height + legend,
    "margin.t": figure.layout.margin ? figure.layout.margin.t : legend + 8,
    "legend.maxheight": legend + 8, // else plotly makes a long legend scroll
  };
}

function fit(widthOf) {
  elements.forEach((element, i) => {
    const width = widthOf(element);
    if (element.layout.width !== width) Plotly.relayout(element, size(figures[i], width));
  });
}

const onScreen = (element) => element.clientWidth;
const onPaper = (element) => (element.classList.contains("wide") ? PAPER.wide : PAPER.narrow);

const drawn = Promise.all(elements.map((element, i) => {
  const { data, layout } = figures[i];
  const { width, height, "margin.t": t, "legend.maxheight": maxheight } = size(figures[i], onScreen(element));
  const common = {
    font: { family: "system-ui, sans-serif", size: 12 },
    paper_bgcolor: "rgba(0,0,0,0)",
    plot_bgcolor: "rgba(0,0,0,0)",
    legend: { orientation: "h", x: 0, xanchor: "left", y: 1, yanchor: "bottom", tracegroupgap: 0, maxheight, bgcolor: "rgba(0,0,0,0)" },
    margin: { l: 52, r: 8, t, b: 44 },
    // a finger on a chart scrolls the page
    dragmode: matchMedia("(pointer: coarse)").matches ? false : "zoom",
  };
  return Plotly.newPlot(element, data, { ...common, ...layout, width, height }, CONFIG);
}));
drawn.then(() => { // a chart that is still being drawn cannot be resized
  addEventListener("resize", () => fit(onScreen));
  addEventListener("beforeprint", () => fit(onPaper));
  addEventListener("afterprint", () => fit(onScreen));
  fit(onScreen);
});
