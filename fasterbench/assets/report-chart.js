// Charts: the first beside the table, further ones in the panel below it.
const config = {displaylogo: false, responsive: true, displayModeBar: innerWidth > 700 ? "hover" : false,
                modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"]}
let charts = [], marked, passing

// Colours of the page, light or dark, on a figure that comes without.
const color = name => getComputedStyle(document.documentElement).getPropertyValue(`--${name}`).trim()
function themed(layout) {
  const {height, width, title, ...kept} = layout
  const axes = Object.keys(kept).filter(k => /^[xy]axis/.test(k)).map(k => {
    const title = {...kept[k].title, standoff: 6, font: {size: innerWidth > 700 ? 12 : 11}}
    const axis = {...kept[k], title, gridcolor: color("grid"), linecolor: color("grid"), zerolinecolor: color("grid")}
    return [k, axis]
  })
  const annotations = (kept.annotations ?? []).map(a => ({...a, font: {...a.font, color: color("soft"), size: innerWidth > 700 ? 12 : 10}}))
  const margin = innerWidth > 700 ? {...kept.margin, r: 14, b: 46} : {...kept.margin, l: 52, r: 8, b: 42}
  return {...kept, ...Object.fromEntries(axes), annotations, margin, autosize: true, font: {...kept.font, color: color("ink")},
          hoverlabel: {...kept.hoverlabel, bgcolor: color("page"), bordercolor: color("line"), font: {color: color("ink")}}}
}

// The markers of the rows that are marked, or the bars of all that pass the filters; what stands for no row stays.
function part(trace) {
  const of = trace.customdata, rows = trace.type === "bar" ? passing : marked
  if (!of) return trace
  const kept = v => Array.isArray(v) && v.length === of.length ? v.filter((_, i) => rows.has(of[i])) : v
  const each = o => Object.fromEntries(Object.entries(o).map(([k, v]) => [k, kept(v)]))
  const made = {...each(trace), ...(trace.marker && {marker: each(trace.marker)})}
  return trace.type === "bar" ? outlined(made) : made
}

// The rows that a choice lights up. A group has bars for its members, and once it is open markers too.
const lit = members => {
  const row = state.row === null ? null : rowAt(state.row)
  return new Set(!row ? [] : row.members && (members || state.open.has(row.index)) ? row.members.map(m => m.index) : [row.index])
}

function outlined(trace) {
  const chosen = lit(true), line = trace.marker.line ?? {}
  const each = (yes, no) => trace.customdata.map(i => chosen.has(i) ? yes : no)
  return {...trace, marker: {...trace.marker, line: {color: each(color("ring"), line.color), width: each(3, line.width ?? 0)}}}
}

// A ring around each marker of the chosen row.
function rings(traces) {
  const chosen = lit(false), ring = color("ring")
  return traces.filter(t => t.type !== "bar" && t.hoverinfo !== "skip" && t.customdata?.some(i => chosen.has(i))).map(t => {
    const at = t.customdata.flatMap((c, i) => chosen.has(c) ? [i] : [])
    const size = i => Array.isArray(t.marker?.size) ? t.marker.size[i] : t.marker?.size ?? 8
    return {type: "scatter", mode: "markers", x: at.map(i => t.x[i]), y: at.map(i => t.y[i]), xaxis: t.xaxis, yaxis: t.yaxis,
            name: "chosen", hoverinfo: "skip", showlegend: false, cliponaxis: false,
            marker: {symbol: "circle-open", size: at.map(i => size(i) + 9), color: ring, line: {width: 3, color: ring}}}
  })
}

const drawn = figure => { const traces = figure.data.map(part); return [...traces, ...rings(traces)] }

function redraw() {
  tab.figures.forEach((figure, i) => Plotly.react(charts[i], drawn(figure), themed(figure.layout), config))
  nameSlowest()
}

// A click on a marker chooses its row. A click on the legend filters by what bounds, or hides what the entry stands for.
function draw(figure, i) {
  const chart = element("div", {className: "chart"})
  const frame = i ? element("figure", {}, chart) : at("chart")
  if (i) at("charts").append(frame); else frame.replaceChildren(chart)
  if (i && figure.layout.height) chart.style.height = `${figure.layout.height}px`
  frame.ariaLabel = figure.alt
  Plotly.newPlot(chart, drawn(figure), themed(figure.layout), config)
  chart.on("plotly_click", e => choose(e.points[0].customdata ?? state.row))
  chart.on("plotly_legendclick", e => pressed(figure, e.data[e.curveNumber]))
  chart.on("plotly_legenddoubleclick", () => false)
  return chart
}

function pressed(figure, {legendgroup, name}) {
  const of = t => legendgroup ? t.legendgroup === legendgroup : t.name === name
  const bound = at("filter-bound")
  if (bound && [...bound.options].some(o => o.value === legendgroup)) {
    state.filters.bound = state.filters.bound === legendgroup ? "" : legendgroup
    bound.value = state.filters.bound
  } else for (const t of figure.data.filter(of)) t.visible = t.visible === "legendonly" ? true : "legendonly"
  refresh()
  return false
}

function drawAll() {
  for (const chart of charts) Plotly.purge(chart)
  at("chart").replaceChildren()
  at("charts").replaceChildren()
  charts = tab.figures.map(draw)
  nameSlowest()
}

// The names of the chosen row and of the slowest ones stand beside their markers, where there is room.
function nameSlowest() {
  const chart = charts[0], layout = chart?._fullLayout
  if (!tab.names || !layout?.xaxis) return
  const spots = chart.data.filter(t => t.customdata && t.marker && !t.yaxis?.startsWith("y2") && t.hoverinfo !== "skip")
    .flatMap(t => t.customdata.map((c, i) => ({row: rowAt(c), x: t.x[i], y: t.y[i], r: (t.marker.size?.[i] ?? 8) / 2})))
  const rank = s => s.row.index === state.row ? Infinity : s.row.time_s
  const first = [...new Map(spots.map(s => [s.row, s])).values()].sort((a, b) => rank(b) - rank(a)).slice(0, innerWidth > 700 ? 5 : 3)
  const {xaxis, yaxis} = layout
  const labels = (tab.figures[0].layout.annotations ?? []).length
  const fixed = [...[...chart.querySelectorAll(".annotation")].slice(0, labels), ...chart.querySelectorAll(".legend")]
  const taken = fixed.map(g => boxIn(chart, g))
  for (const s of first) {
    const [x, y] = centre(s, xaxis, yaxis)
    taken.push({left: x - s.r, right: x + s.r, top: y - s.r, bottom: y + s.r})
  }
  const names = first.map(s => placed(s, xaxis, yaxis, taken)).filter(Boolean)
  Plotly.relayout(chart, {annotations: [...themed(tab.figures[0].layout).annotations, ...names]})
}

function boxIn(chart, g) {
  const a = g.getBoundingClientRect(), b = chart.getBoundingClientRect()
  return {left: a.left - b.left, right: a.right - b.left, top: a.top - b.top, bottom: a.bottom - b.top}
}

const centre = ({x, y}, xaxis, yaxis) => [xaxis._offset + xaxis.d2p(x), yaxis._offset + yaxis.d2p(y)]

// The first free place among right, left, above and below; null: there is none.
function placed({row, x, y, r}, xaxis, yaxis, taken) {
  const text = shorten(nameOf(row), 26), w = 6.2 * text.length, h = 13
  const [cx, cy] = centre({x, y}, xaxis, yaxis)
  for (const [dx, dy, xanchor] of [[r + 4, 0, "left"], [-r - 4, 0, "right"], [0, -r - 10, "center"], [0, r + 10, "center"]]) {
    const left = cx + dx - ({left: 0, right: w, center: w / 2})[xanchor]
    const box = {left, right: left + w, top: cy + dy - h / 2, bottom: cy + dy + h / 2}
    const inside = box.left >= xaxis._offset && box.right <= xaxis._offset + xaxis._length
      && box.top >= yaxis._offset && box.bottom <= yaxis._offset + yaxis._length
    if (!inside || taken.some(t => t.left < box.right && box.left < t.right && t.top < box.bottom && box.top < t.bottom)) continue
    taken.push(box)
    return {x: Math.log10(x), y: Math.log10(y), text: text.replace(/[&<>]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[c]), xanchor,
            xshift: dx, yshift: -dy, yanchor: "middle", showarrow: false, captureevents: false, name: "slowest",
            font: {size: 11, color: color("ink")}}
  }
  return null
}
