// Charts: the first beside the table, further ones in the panel below it.
const config = {displaylogo: false, responsive: true, displayModeBar: wide() ? "hover" : false,
                modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]}
let charts = [], marked, passing

// Colours of the page, light or dark, on a figure that comes without.
const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
function themed(layout, strip = true) {
  const {height, width, title, ...kept} = layout
  const axes = Object.keys(kept).filter(k => /^[xy]axis/.test(k)).map(k => {
    const title = innerHeight < 500 ? "" : {...kept[k].title, standoff: 6, font: {size: wide() ? 12 : 11}}
    const axis = {...kept[k], title, gridcolor: color("grid"), linecolor: color("grid"), zerolinecolor: color("grid")}
    return [k, axis]
  })
  const font = {color: color("soft"), size: wide() ? 12 : 10}
  const annotations = (kept.annotations ?? []).map(a => ({...a, font: {...a.font, ...font}}))
  const alone = layout.yaxis2 && !strip          // nothing is on the strip: the chart has all of the room
  if (alone) {
    const [x2, y2] = ["xaxis2", "yaxis2"].map(k => axes.find(([name]) => name === k)[1])
    x2.visible = y2.visible = false
    Object.assign(axes.find(([name]) => name === "yaxis")[1], {domain: [0, 1]})
  }
  const titled = annotations.some(a => a.yref === "paper" && a.y >= 1)          // a chart of several has titles above
  const margin = {l: wide() ? 60 : 50, r: 12, t: titled ? 26 : 12, b: innerHeight < 500 ? 26 : 42}
  const label = {bgcolor: color("page"), bordercolor: color("line"), font: {color: color("ink")}}
  const hoverlabel = {...kept.hoverlabel, ...label}
  return {...kept, ...Object.fromEntries(axes), annotations, margin, hoverlabel, showlegend: false, autosize: true,
          font: {...kept.font, color: color("ink")}}
}

// The markers of the rows that are marked, or the bars of all that pass the filters; what stands for no row stays.
function part(trace) {
  const of = trace.customdata, rows = trace.type === "bar" ? passing : marked
  if (!of) return lineOfRoof(trace)
  const kept = v => Array.isArray(v) && v.length === of.length ? v.filter((_, i) => rows.has(of[i])) : v
  const each = o => Object.fromEntries(Object.entries(o).map(([k, v]) => [k, kept(v)]))
  const made = {...each(trace), ...(trace.marker && {marker: each(trace.marker)})}
  return trace.type === "bar" ? outlined(made) : made
}

// A roof: its label is placed where nothing lies under it.
const lineOfRoof = trace => trace.textfont ? {...trace, mode: "lines", text: null} : trace

// The rows that a choice lights up. A group has bars for its members, and once it is open markers too.
const lit = members => {
  const row = state.row === null ? null : rowAt(state.row)
  const inner = row?.members && (members || state.open.has(row.index))
  return new Set(!row ? [] : inner ? row.members.map(m => m.index) : [row.index])
}

function outlined(trace) {
  const chosen = lit(true), line = trace.marker.line ?? {}
  const each = (yes, no) => trace.customdata.map(i => chosen.has(i) ? yes : no)
  const outline = {color: each(color("ring"), line.color), width: each(3, line.width ?? 0)}
  return {...trace, marker: {...trace.marker, line: outline}}
}

// A ring around each marker of the chosen row.
function rings(traces) {
  const chosen = lit(false), ring = color("ring")
  const holds = t => t.type !== "bar" && t.hoverinfo !== "skip" && t.customdata?.some(i => chosen.has(i))
  return traces.filter(holds).map(t => {
    const at = t.customdata.flatMap((c, i) => chosen.has(c) ? [i] : [])
    const size = i => Array.isArray(t.marker?.size) ? t.marker.size[i] : t.marker?.size ?? 8
    return {type: "scatter", mode: "markers", x: at.map(i => t.x[i]), y: at.map(i => t.y[i]),
            xaxis: t.xaxis, yaxis: t.yaxis, name: "chosen", hoverinfo: "skip", showlegend: false, cliponaxis: false,
            marker: {symbol: "circle-open", size: at.map(i => size(i) + 9), color: ring, line: {width: 3, color: ring}}}
  })
}

const drawn = figure => { const traces = figure.data.map(part); return [...traces, ...rings(traces)] }

const onStrip = traces => traces.some(t => t.yaxis === "y2" && t.x?.length)

function redraw() {
  tab.figures.forEach((figure, i) => {
    const traces = drawn(figure)
    Plotly.react(charts[i], traces, themed(figure.layout, onStrip(traces)), config)
  })
  label()
  showLegend()
}

// A click on a marker chooses its row.
function draw(figure, i) {
  const chart = element("div", {className: "chart"})
  const frame = i ? element("figure", {}, chart) : at("chart")
  if (i) at("charts").append(frame); else frame.replaceChildren(chart)
  const bars = figure.layout.yaxis?.categoryarray?.length
  if (i) chart.style.height = `${bars ? 26 * bars + 50 : figure.layout.height ?? 220}px`
  if (i) frame.prepend(element("figcaption", {textContent: figure.alt.split(":")[0]}))
  frame.ariaLabel = figure.alt
  const traces = drawn(figure)
  Plotly.newPlot(chart, traces, themed(figure.layout, onStrip(traces)), config)
  chart.on("plotly_click", e => choose(e.points[0].customdata ?? state.row))
  return chart
}

// All charts of a tab, anew.
function drawAll() {
  for (const chart of charts) Plotly.purge(chart)
  at("chart").replaceChildren()
  at("charts").replaceChildren()
  charts = tab.figures.map(draw)
  label()
  showLegend()
}
