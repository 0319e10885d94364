// Charts: the first beside the table, further ones in the panel below it.
const config = {displaylogo: false, responsive: false, showSendToCloud: false, displayModeBar: wide() ? "hover" : false,
                modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]}
let charts = [], marked, passing

// The strip below the chart, for rows that have no place on it, and the axis above it: px. The chart keeps its own height,
// save on a phone on its side.
const low = () => innerHeight < 500, under = () => low() ? 24 : 46
const stripOf = (layout, traces) => layout.yaxis2?.type === "category" && traces.some(t => t.yaxis === "y2" && t.x?.length)
const stripHeight = layout => (low() ? 13 : 17) * layout.yaxis2.categoryarray.length + 12
// On a phone the panels of a chart are below one another: px for each.
const narrow = () => innerWidth < 600, panelHeight = 170
const panelsOf = layout => layout.annotations?.length ?? 0                     // each has a title
const isStacked = layout => narrow() && panelsOf(layout) > 1 && layout.xaxis2?.domain?.[0] > 0.3
function stacked(axes, annotations, high) {
  const panels = Object.keys(axes).filter(k => /^xaxis/.test(k)).map(k => k.slice(5)).slice(0, annotations.length)
  const each = high / panels.length, tops = panels.map((n, i) => 1 - (i * each + 18) / high)
  panels.forEach((n, i) => {
    axes[`xaxis${n}`].domain = [0, 1]
    axes[`yaxis${n}`].domain = [Math.max(0, tops[i] - (each - 66) / high), tops[i]]
    Object.assign(annotations[i], {x: 0.5, y: tops[i]})
  })
}
function makeRoom(layout, traces) {
  at("chart").style.setProperty("--chart", isStacked(layout) ? `${panelHeight * panelsOf(layout)}px` : "")
  const bars = layout.yaxis?.categoryarray?.length       // one is not as high as a chart, and each of many has its name
  Object.assign(at("chart").style, {maxHeight: bars ? `${44 * bars + 100}px` : "",
                                    minHeight: bars ? `${(wide() ? 17 : 38) * bars + 70}px` : ""})
  const rows = Object.keys(layout).filter(k => /^yaxis/.test(k)).length > 3
  const high = !stripOf(layout, traces) ? low() && rows ? 170 : 0 : low() ? 0 : stripHeight(layout) + under()
  document.documentElement.style.setProperty("--strip", `${high}px`)
}

// Labels of numbers on a narrow axis: every second one or less, as many as fit without being turned.
function fewer({ticktext, domain = [0, 1], nticks = 5}, width) {
  if (!ticktext) return {tickangle: 0, nticks: Math.min(nticks, 5)}
  const each = Math.max(...ticktext.map(t => widthOf(t, 10))) + 8, room = width * (domain[1] - domain[0])
  const step = Math.ceil(each * ticktext.length / room)
  return {tickangle: 0, ticktext: ticktext.map((t, i) => i % step ? "" : t)}
}

// Colours of the page, light or dark, on a figure that comes without.
const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
function themed(layout, traces, chart) {
  const high = chart.clientHeight, {height, width, title, ...kept} = layout, titles = high >= 250 || !low()
  const axes = Object.fromEntries(Object.keys(kept).filter(k => /^[xy]axis/.test(k)).map(k => {
    const title = titles ? {...kept[k].title, standoff: 6, font: {size: wide() ? 12 : 11}} : ""
    return [k, {...kept[k], title, gridcolor: color("grid"), linecolor: color("grid"), zerolinecolor: color("grid")}]
  }))
  const font = {color: color("soft"), size: wide() ? 12 : 10}
  const annotations = (kept.annotations ?? []).map(a => ({...a, font: {...a.font, ...font}}))
  if (isStacked(layout)) stacked(axes, annotations, high)
  const titled = annotations.some(a => a.yref === "paper" && a.y >= 1)          // a chart of several has titles above
  const margin = {l: wide() ? 60 : 50, r: 12, t: titled ? 26 : 12, b: titles ? 42 : 26}
  if (stripOf(layout, traces)) {
    const all = high - margin.t - margin.b, strip = stripHeight(layout)
    axes.yaxis.domain = [(strip + under()) / all, 1]
    axes.yaxis2.domain = [0, strip / all]
    // shorter on a phone, where the labels take the width of the chart
    if (!wide()) axes.yaxis2.ticktext = (axes.yaxis2.tickvals = layout.yaxis2.categoryarray).map(t => t.replace(" unknown", " ?"))
  } else if (layout.yaxis2?.type === "category") {
    axes.xaxis2.visible = axes.yaxis2.visible = false
    axes.yaxis.domain = [0, 1]
  }
  const names = layout.yaxis?.categoryarray ?? traces[0]?.y ?? []
  const above = !wide() && typeof names[0] === "string" && high - 68 > 36 * names.length
  // Axes under which no row passes the filters say so, and nothing else; plotly fails where labels within one are hidden.
  const has = t => (t.visible ?? true) !== "legendonly" && (t.x?.length ?? 0) > 0 && t.y?.length > 0
  for (const k of Object.keys(axes).filter(k => /^yaxis/.test(k) && (k !== "yaxis2" || layout.yaxis2.type !== "category"))) {
    const n = k.slice(5), on = traces.filter(t => (t.yaxis ?? "y") === `y${n}`)
    if (on.some(has) || !on.length && traces.some(has)) continue
    axes[k].visible = axes[`xaxis${n}`].visible = above
    annotations.push({text: "no row matches the filters", showarrow: false, xref: `x${n} domain`, yref: `y${n} domain`, x: 0.5, y: 0.5, font})
  }
  // On a phone the names of rows are above them, where the rows leave room for that; bars are thin there.
  if (above) {
    const ticklabelshift = layout.yaxis.autorange === "reversed" ? 21 : -21, tickfont = {color: color("ink")}
    Object.assign(axes.yaxis, {ticklabelposition: "inside", ticklabelshift, tickfont, ticklabeloverflow: "allow",
                               automargin: false, showgrid: true})
    margin.l = 12
    margin.t = 26
  }
  // There labels of categories are small, so that each stays within its panel, and numbers lie flat, so that fewer fit.
  for (const k of Object.keys(axes)) if (/^xaxis/.test(k) && !wide())
    Object.assign(axes[k], axes[k].type === "category" ? {tickfont: {size: 9}} : fewer(axes[k], chart.clientWidth - margin.l))
  const label = {bgcolor: color("page"), bordercolor: color("line"), font: {color: color("ink")}}
  const hoverlabel = {...kept.hoverlabel, ...label}
  const bargap = above ? Math.max(0.55, 1 - 24 * names.length / high) : kept.bargap
  return {...kept, ...axes, annotations, margin, hoverlabel, bargap, showlegend: false, width: chart.clientWidth, height: high,
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

let size
const sizeOfChart = () => `${at("chart").clientWidth} ${at("chart").clientHeight}`

// The window for which charts and labels are in place, for whoever waits for it.
const inPlace = () => { document.body.dataset.size = `${innerWidth}x${innerHeight}` }

// Plotly fails where labels of an axis that is there go inside: such a chart is made again.
function redraw() {
  for (const [i, figure] of tab.figures.entries()) {
    const traces = drawn(figure)
    if (!i) makeRoom(figure.layout, traces)
    const layout = themed(figure.layout, traces, charts[i])
    if (layout.yaxis?.ticklabelposition !== charts[i].layout.yaxis?.ticklabelposition) return drawAll()
    Plotly.react(charts[i], traces, layout, config)
  }
  showLegend()
  return label()
}

// A click on a marker chooses its row.
function draw(figure, i) {
  const chart = element("div", {className: "chart"})
  const frame = i ? element("figure", {}, chart) : at("chart")
  if (i) at("charts").append(frame); else frame.replaceChildren(chart)
  const bars = figure.layout.yaxis?.categoryarray?.length
  if (i) chart.style.height = `${bars ? 26 * bars + 50 : figure.layout.height ?? 220}px`
  const caption = figure.layout.title?.text || (i ? figure.alt.split(":")[0] : "")
  if (caption) frame.prepend(element("figcaption", {textContent: caption}))
  frame.ariaLabel = figure.alt
  const traces = drawn(figure)
  if (!i) makeRoom(figure.layout, traces)
  Plotly.newPlot(chart, traces, themed(figure.layout, traces, chart), config)
  chart.on("plotly_click", e => choose(e.points[0].customdata ?? state.row))
  return chart
}

// Draw all charts of a tab. Those of another tab are let go, not purged: one may still be drawn, or saved as an image.
function drawAll() {
  at("chart").replaceChildren()
  at("charts").replaceChildren()
  document.querySelector(".both").classList.toggle("alone", !tab.figures.length)
  charts = tab.figures.map(draw)
  size = sizeOfChart()
  showLegend()
  return Promise.resolve(label()).then(inPlace)
}
