// The name of the chosen or the slowest row, labels of the roofs, then names of further slow rows: each where nothing lies under it.
function label() {
  const chart = charts[0], layout = chart?._fullLayout
  if (!layout?.xaxis || !tab.figures[0].data.some(t => t.textfont) && !tab.names) return
  const {xaxis, yaxis} = layout
  const spots = chart.data.filter(t => t.customdata && t.marker && !t.yaxis?.startsWith("y2") && t.hoverinfo !== "skip")
    .flatMap(t => t.customdata.map((c, i) => ({row: rowAt(c), x: t.x[i], y: t.y[i], r: radius(t.marker, i)})))
    .filter(s => s.x !== null && s.y !== null)
  const star = chart.data.filter(t => t.name === "whole model").flatMap(t => t.x.map((x, i) => ({x, y: t.y[i], r: 10})))
  const ridges = chart.data.filter(t => t.mode === "markers" && !t.name).flatMap(t => t.x.map((x, i) => ({x, y: t.y[i], r: 6})))
  const around = s => {
    const [x, y] = centre(s, xaxis, yaxis)
    return {left: x - s.r, right: x + s.r, top: y - s.r, bottom: y + s.r, named: star.includes(s)}
  }
  const own = [...chart.querySelectorAll(".annotation")].slice(0, (tab.figures[0].layout.annotations ?? []).length)
  const taken = [...own.map(g => boxIn(chart, g)), ...[...star, ...spots, ...ridges].map(around)]
  const bare = alongLines(chart, xaxis, yaxis, t => t.legendgroup?.startsWith("roof"))
  const lines = [...bare, ...alongLines(chart, xaxis, yaxis, t => !t.legendgroup?.startsWith("roof"))]
  const first = tab.names ? slowest(spots, xaxis, yaxis).slice(0, wide() ? 5 : 3) : []
  const ways = [[lines, 56, true], [lines, 150, true], [[], 80, true], [lines, 150, false], [[], 150, false]]
  const tries = [26, 14].flatMap(width => ways.map(way => [width, ...way]))
  const name = s => tries.reduce((found, how) => found ?? placed(s, xaxis, yaxis, taken, ...how), null)
  const top = first.slice(0, 1).map(name), roofs = labelled(chart, xaxis, yaxis, taken, lines, bare)
  const names = [...top, ...first.slice(1).map(name)].filter(Boolean)
  Plotly.relayout(chart, {annotations: [...themed(tab.figures[0].layout).annotations, ...roofs, ...names]})
}

// The spots of the chosen row and of those that take the most time; rows at one place are one spot, with `more` of them.
function slowest(spots, xaxis, yaxis) {
  const rank = s => s.row.index === state.row ? Infinity : s.row.time_s, places = []
  const near = (a, b) => a.row.phase === b.row.phase && Math.hypot(...a.at.map((v, j) => v - b.at[j])) < 3
  for (const s of [...new Map(spots.map(s => [s.row, s])).values()].sort((a, b) => rank(b) - rank(a))) {
    const own = {...s, at: centre(s, xaxis, yaxis), more: 0, time: rank(s)}, there = places.find(p => near(p, own))
    if (!there) places.push(own)
    else { there.more += 1; there.time += own.time; there.r = Math.max(there.r, s.r) }
  }
  return places.sort((a, b) => b.time - a.time)
}

// With half of the outline.
const radius = ({size, line}, i) => ((size?.[i] ?? 8) + (line?.width?.[i] ?? line?.width ?? 0)) / 2

// The width of a text as it is drawn.
const pen = document.createElement("canvas").getContext("2d")
function widthOf(text, size) {
  pen.font = `${size}px system-ui, sans-serif`
  return pen.measureText(text).width + 2
}

// A label per roof, somewhere along its line, above or below it, off markers, other labels and other lines.
const along = [0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82, 0.1, 0.9, 0.04, 0.96]
function labelled(chart, xaxis, yaxis, taken, lines, bare) {
  const size = wide() ? 12 : 10, h = size + 5
  const frame = {left: xaxis._offset, right: xaxis._offset + xaxis._length, top: yaxis._offset - h, bottom: yaxis._offset + yaxis._length}
  const place = (t, text, from) => {
    const w = widthOf(text, size)
    const [a, b] = clipped([0, t.x.length - 1].map(k => centre({x: t.x[k], y: t.y[k]}, xaxis, yaxis)), frame)
    const flat = Math.abs(a[1] - b[1]) < 1
    for (const gap of flat ? [0, 7, 14, 21] : [0]) for (const f of along) for (const up of [true, false]) {
      const [x, y] = a.map((v, j) => v + (b[j] - v) * f)
      const middle = Math.max(frame.left, Math.min(x - w / 2, frame.right - w))
      const left = flat ? middle : up ? x - w - 4 : x + 4, top = up ? y - h - gap : y + 1 + gap
      const box = {left, right: left + w, top, bottom: top + h, named: true}
      const inside = box.left >= frame.left && box.right <= frame.right && box.top >= frame.top && box.bottom <= frame.bottom
      if (!inside || [...taken, ...from].some(t => overlap(t, box))) continue
      taken.push(box)
      const [dx, dy] = [xaxis.p2d(left - xaxis._offset), yaxis.p2d(top + h / 2 - yaxis._offset)].map(Math.log10)
      return {x: dx, y: dy, text: escaped(text), xanchor: "left", yanchor: "middle", showarrow: false, borderpad: 0,
              captureevents: false, name: "roof", font: {size, color: color("soft")}}
    }
    return null
  }
  const drawn = t => t.textfont && t.visible !== "legendonly"
  return tab.figures[0].data.filter(drawn).map(t => {
    const whole = plain(t.text[1]), name = whole.replace(/ [\d.]+ \S*\/s$/, "")
    const texts = wide() ? [whole, name] : [name]
    const tries = [...texts.flatMap(text => [[text, lines], [text, bare]]), ...texts.map(text => [text, []])]
    return tries.reduce((found, how) => found ?? place(t, ...how), null)
  }).filter(Boolean)
}

// The part of a straight line that lies within a frame.
function clipped([a, b], frame) {
  const at = f => a.map((v, j) => v + (b[j] - v) * f)
  const inside = ([x, y]) => x >= frame.left && x <= frame.right && y >= frame.top && y <= frame.bottom
  const steps = Array.from({length: 201}, (_, k) => k / 200).filter(f => inside(at(f)))
  return steps.length ? [at(steps[0]), at(steps.at(-1))] : [a, b]
}

function boxIn(chart, g) {
  const a = g.getBoundingClientRect(), b = chart.getBoundingClientRect()
  return {left: a.left - b.left, right: a.right - b.left, top: a.top - b.top, bottom: a.bottom - b.top}
}

// Points on those lines of the chart that are `wanted`, close to each other.
function alongLines(chart, xaxis, yaxis, wanted) {
  const first = t => !t.xaxis || t.xaxis === "x"
  const few = t => t.x?.length > 1 && t.x.length < 400
  const on = t => t.mode?.includes("lines") && few(t) && first(t) && wanted(t) && t.visible !== "legendonly"
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

// The first free place among right, left, above and below, then farther away, with a line to the marker, which crosses
// no name, not the star and, where it is to stay apart, no other marker; null: there is none.
const sides = [[1, 0], [-1, 0], [0, -1], [0, 1]]
const turns = [...[-45, 45, -135, 135], ...[0, 180, -90, 90], ...[-20, 20, -70, 70, -110, 110, -160, 160]]
const directions = turns.map(turn => [Math.cos(turn * Math.PI / 180), Math.sin(turn * Math.PI / 180)])
const places = [...sides.map(s => [0, s]), ...[16, 32, 56, 80, 110, 150].flatMap(d => directions.map(s => [d, s]))]
function placed({row, x, y, r, more}, xaxis, yaxis, taken, width, others, reach, apart) {
  const phase = {forward: " fwd", backward: " bwd", update: " upd"}[row.phase] ?? ""
  const text = shortName(row, width) + phase + (more ? ` +${more} more` : ""), w = widthOf(text, 11), h = 13
  const [cx, cy] = centre({x, y}, xaxis, yaxis), marker = {left: cx - r, right: cx + r, top: cy - r, bottom: cy + r}
  for (const [away, [right, down]] of places.filter(([away]) => away <= reach)) {
    const dx = right * (r + 4 + away), dy = down * (r + 10 + away), xanchor = Math.abs(right) < 0.5 ? "center" : right < 0 ? "right" : "left"
    const left = cx + dx - ({left: 0, right: w, center: w / 2})[xanchor]
    const box = {left, right: left + w, top: cy + dy - h / 2, bottom: cy + dy + h / 2, named: true}
    const way = away ? between([cx, cy], [cx + dx, cy + dy]) : []
    const inside = box.left >= xaxis._offset && box.right <= xaxis._offset + xaxis._length
      && box.top >= yaxis._offset && box.bottom <= yaxis._offset + yaxis._length
    const self = t => away === 0 && t.left === cx - r && t.top === cy - r
    const covered = [...taken, ...others].some(t => !self(t) && overlap(t, box))
    const crossed = taken.some(t => (t.named || apart) && !overlap(t, marker) && way.some(p => overlap(t, p)))
    if (!inside || covered || crossed) continue
    taken.push(box, ...way)
    const line = {showarrow: true, ax: dx, ay: dy, standoff: r, arrowhead: 0, arrowwidth: 1, arrowcolor: color("ink")}
    const beside = {showarrow: false, xshift: dx, yshift: -dy}
    return {x: Math.log10(x), y: Math.log10(y), text: escaped(text), xanchor, yanchor: "middle", captureevents: false,
            name: "slowest", font: {size: 11, color: color("ink")}, ...(away ? line : beside)}
  }
  return null
}
