// The names of the chosen row and of the slowest ones stand beside their markers, where there is room.
function nameSlowest() {
  const chart = charts[0], layout = chart?._fullLayout
  if (!tab.names || !layout?.xaxis) return
  const spots = chart.data.filter(t => t.customdata && t.marker && !t.yaxis?.startsWith("y2") && t.hoverinfo !== "skip")
    .flatMap(t => t.customdata.map((c, i) => ({row: rowAt(c), x: t.x[i], y: t.y[i], r: (t.marker.size?.[i] ?? 8) / 2})))
  const rank = s => s.row.index === state.row ? Infinity : s.row.time_s
  const once = [...new Map(spots.map(s => [s.row, s])).values()]
  const first = once.sort((a, b) => rank(b) - rank(a)).slice(0, wide() ? 5 : 3)
  const {xaxis, yaxis} = layout
  const labels = (tab.figures[0].layout.annotations ?? []).length
  const annotations = [...chart.querySelectorAll(".annotation")].slice(0, labels)
  const fixed = [...annotations, ...chart.querySelectorAll(".textpoint text")]
  const star = chart.data.filter(t => t.name === "whole model").flatMap(t => t.x.map((x, i) => ({x, y: t.y[i], r: 9})))
  const around = s => {
    const [x, y] = centre(s, xaxis, yaxis)
    return {left: x - s.r, right: x + s.r, top: y - s.r, bottom: y + s.r}
  }
  const taken = [...fixed.map(g => boxIn(chart, g)), ...[...star, ...first].map(around)]
  const others = [...spots.map(around), ...alongRoofs(chart, xaxis, yaxis)]
  const place = (s, free) => placed(s, xaxis, yaxis, taken, free)
  const names = first.map(s => place(s, others) ?? place(s, [])).filter(Boolean)
  Plotly.relayout(chart, {annotations: [...themed(tab.figures[0].layout).annotations, ...names]})
}

function boxIn(chart, g) {
  const a = g.getBoundingClientRect(), b = chart.getBoundingClientRect()
  return {left: a.left - b.left, right: a.right - b.left, top: a.top - b.top, bottom: a.bottom - b.top}
}

// Points on the lines of the roofs, close to each other.
function alongRoofs(chart, xaxis, yaxis) {
  const on = t => t.legendgroup?.startsWith("roof") && t.mode?.includes("lines") && t.visible !== "legendonly"
  return chart.data.filter(on).flatMap(t => t.x.slice(1).flatMap((_, i) => {
    const [a, b] = [i, i + 1].map(k => centre({x: t.x[k], y: t.y[k]}, xaxis, yaxis))
    return between(a, b)
  }))
}

// Points from `a` to `b`, as boxes without a size.
const between = (a, b) => Array.from({length: 80}, (_, k) => a.map((v, j) => v + (b[j] - v) * k / 79))
  .map(([x, y]) => ({left: x, right: x, top: y, bottom: y}))
const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom

const centre = ({x, y}, xaxis, yaxis) => [xaxis._offset + xaxis.d2p(x), yaxis._offset + yaxis.d2p(y)]

const escaped = text => text.replace(/[&<>]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[c])

// The first free place among right, left, above and below, then farther away, with a line to the marker; null: there
// is none.
const sides = [[1, 0], [-1, 0], [0, -1], [0, 1]], corners = [[1, -1], [1, 1], [-1, -1], [-1, 1]]
const places = [...sides.map(s => [0, s]), ...[16, 32, 56, 80].flatMap(d => [...corners, ...sides].map(s => [d, s]))]
function placed({row, x, y, r}, xaxis, yaxis, taken, others) {
  const text = shorten(nameOf(row), 26), w = 6.2 * text.length, h = 13
  const [cx, cy] = centre({x, y}, xaxis, yaxis)
  for (const [away, [right, down]] of places) {
    const dx = right * (r + 4 + away), dy = down * (r + 10 + away), xanchor = ["right", "center", "left"][right + 1]
    const left = cx + dx - ({left: 0, right: w, center: w / 2})[xanchor]
    const box = {left, right: left + w, top: cy + dy - h / 2, bottom: cy + dy + h / 2, named: true}
    const way = away ? between([cx, cy], [cx + dx, cy + dy]) : []
    const inside = box.left >= xaxis._offset && box.right <= xaxis._offset + xaxis._length
      && box.top >= yaxis._offset && box.bottom <= yaxis._offset + yaxis._length
    const covered = [...taken, ...others].some(t => overlap(t, box))
    const crossed = taken.some(t => t.named && way.some(p => overlap(t, p)))
    if (!inside || covered || crossed) continue
    taken.push(box, ...way)
    const line = {showarrow: true, ax: dx, ay: dy, standoff: r, arrowhead: 0, arrowwidth: 1, arrowcolor: color("ink")}
    const beside = {showarrow: false, xshift: dx, yshift: -dy}
    return {x: Math.log10(x), y: Math.log10(y), text: escaped(text), xanchor, yanchor: "middle", captureevents: false,
            name: "slowest", font: {size: 11, color: color("ink")}, ...(away ? line : beside)}
  }
  return null
}
