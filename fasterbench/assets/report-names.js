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
  const fixed = [...[...chart.querySelectorAll(".annotation")].slice(0, labels), ...chart.querySelectorAll(".textpoint text")]
  const star = chart.data.filter(t => t.name === "whole model").flatMap(t => t.x.map((x, i) => ({x, y: t.y[i], r: 9})))
  const around = s => { const [x, y] = centre(s, xaxis, yaxis); return {left: x - s.r, right: x + s.r, top: y - s.r, bottom: y + s.r} }
  const taken = [...fixed.map(g => boxIn(chart, g)), ...[...star, ...first].map(around)], others = spots.map(around)
  const names = first.map(s => placed(s, xaxis, yaxis, taken, others) ?? placed(s, xaxis, yaxis, taken, [])).filter(Boolean)
  Plotly.relayout(chart, {annotations: [...themed(tab.figures[0].layout).annotations, ...names]})
}

function boxIn(chart, g) {
  const a = g.getBoundingClientRect(), b = chart.getBoundingClientRect()
  return {left: a.left - b.left, right: a.right - b.left, top: a.top - b.top, bottom: a.bottom - b.top}
}

const centre = ({x, y}, xaxis, yaxis) => [xaxis._offset + xaxis.d2p(x), yaxis._offset + yaxis.d2p(y)]

// The first free place among right, left, above and below; null: there is none.
function placed({row, x, y, r}, xaxis, yaxis, taken, others) {
  const text = shorten(nameOf(row), 26), w = 6.2 * text.length, h = 13
  const [cx, cy] = centre({x, y}, xaxis, yaxis)
  for (const [dx, dy, xanchor] of [[r + 4, 0, "left"], [-r - 4, 0, "right"], [0, -r - 10, "center"], [0, r + 10, "center"]]) {
    const left = cx + dx - ({left: 0, right: w, center: w / 2})[xanchor]
    const box = {left, right: left + w, top: cy + dy - h / 2, bottom: cy + dy + h / 2}
    const inside = box.left >= xaxis._offset && box.right <= xaxis._offset + xaxis._length
      && box.top >= yaxis._offset && box.bottom <= yaxis._offset + yaxis._length
    if (!inside || [...taken, ...others].some(t => t.left < box.right && box.left < t.right && t.top < box.bottom && box.top < t.bottom)) continue
    taken.push(box)
    return {x: Math.log10(x), y: Math.log10(y), text: text.replace(/[&<>]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[c]), xanchor,
            xshift: dx, yshift: -dy, yanchor: "middle", showarrow: false, captureevents: false, name: "slowest",
            font: {size: 11, color: color("ink")}}
  }
  return null
}
