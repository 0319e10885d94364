// The labels of the roofs beside their lines, the names of the chosen or slowest rows, the labels that found no place on
// leaders, further names: each where nothing lies under it, or nowhere.
const labels = new Set(["roof", "slowest"])      // names of the annotations that are placed here
function label() {
  const chart = charts[0], layout = chart?._fullLayout
  if (!layout?.xaxis || !tab.figures[0].data.some(t => t.textfont) && !tab.names) return
  const {xaxis, yaxis} = layout, of = wanted => chart.data.filter(wanted)
  const spots = of(t => t.customdata && t.marker && !t.yaxis?.startsWith("y2") && t.hoverinfo !== "skip")
    .flatMap(t => t.customdata.map((c, i) => ({row: rowAt(c), x: t.x[i], y: t.y[i], r: radius(t.marker, i)})))
    .filter(s => s.x !== null && s.y !== null)
  const marks = (wanted, r) => of(wanted).flatMap(t => t.x.map((x, i) => ({x, y: t.y[i], r})))
  const others = [...marks(t => t.name === "whole model", 10), ...marks(t => t.mode === "markers" && !t.name, 6)]
  const own = [...chart.querySelectorAll(".annotation")].slice(0, (tab.figures[0].layout.annotations ?? []).length)
  const room = {
    xaxis, yaxis, lines: segments(chart, xaxis, yaxis), leaders: [],
    boxes: [...own.map(g => boxIn(chart, g)), ...[...others, ...spots].map(s => around(centre(s, xaxis, yaxis), s.r))],
    frame: {left: xaxis._offset, right: xaxis._offset + xaxis._length, top: yaxis._offset - 10, bottom: yaxis._offset + yaxis._length}}
  const first = tab.names ? slowest(spots, xaxis, yaxis).slice(0, wide() ? 5 : 3) : []
  const roofs = tab.figures[0].data.filter(t => t.textfont && t.visible !== "legendonly")
  const name = s => nameOn(room, s), near = roofs.map(t => roofLabel(room, t, false)), top = first.slice(0, 3).map(name), far = roofs.filter((_, i) => !near[i]).map(t => roofLabel(room, t, true))
  const texts = [...near, ...top, ...far, ...first.slice(3).map(name)].filter(Boolean)
  const kept = (chart.layout.annotations ?? []).filter(a => !labels.has(a.name))
  return Plotly.relayout(chart, {annotations: [...kept, ...texts]})
}

// The phase of a row, behind its name.
const phaseMark = row => ({forward: " fwd", backward: " bwd", update: " upd", recompute: " rec"})[row.phase] ?? ""

// What a row is named for: its time, of a comparison the change of its time, unless it is within the spread or the drift.
function weight(row) {
  if ("time_s" in row) return row.time_s
  const {time_before_s: before, time_after_s: after, clear} = row
  return before && after && clear === false ? 0 : Math.abs((before || 0) - (after || 0))
}

// The spots of the chosen row and of those with the most weight; rows at one place are one spot, with `more` of them.
function slowest(spots, xaxis, yaxis) {
  const rank = s => s.row.index === state.row ? Infinity : weight(s.row), places = []
  const near = (a, b) => a.row.phase === b.row.phase && Math.hypot(...a.at.map((v, j) => v - b.at[j])) < 3
  const last = [...new Map(spots.map(s => [s.row, s])).values()].filter(s => rank(s) > 0)
  for (const s of last.sort((a, b) => rank(b) - rank(a))) {
    const own = {...s, at: centre(s, xaxis, yaxis), more: 0, time: rank(s)}, there = places.find(p => near(p, own))
    if (!there) places.push(own)
    else { there.more += 1; there.time += own.time; there.r = Math.max(there.r, s.r) }
  }
  return places.sort((a, b) => b.time - a.time)
}

// With half of the outline.
const radius = ({size, line}, i) => ((size?.[i] ?? 8) + (line?.width?.[i] ?? line?.width ?? 0)) / 2

const centre = ({x, y}, xaxis, yaxis) => [xaxis._offset + xaxis.d2p(x), yaxis._offset + yaxis.d2p(y)]
const around = ([x, y], r) => ({left: x - r, right: x + r, top: y - r, bottom: y + r})
const overlap = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom
const grown = (box, d) => ({left: box.left - d, right: box.right + d, top: box.top - d, bottom: box.bottom + d})

function boxIn(chart, g) {
  const a = g.getBoundingClientRect(), b = chart.getBoundingClientRect()
  return {left: a.left - b.left, right: a.right - b.left, top: a.top - b.top, bottom: a.bottom - b.top}
}

// The lines of the chart, piece by piece, px; they lie under no text.
function segments(chart, xaxis, yaxis) {
  const on = t => t.mode?.includes("lines") && t.x?.length > 1 && t.x.length < 400 && t.visible !== "legendonly"
    && (!t.xaxis || t.xaxis === "x")
  return chart.data.filter(on).flatMap(t => t.x.slice(1).flatMap((_, i) => {
    const ends = [i, i + 1].map(k => centre({x: t.x[k], y: t.y[k]}, xaxis, yaxis))
    return [t.x, t.y].some(v => v[i] === null || v[i + 1] === null) ? [] : [ends]
  }))
}

const along = ([a, b], f) => a.map((v, j) => v + (b[j] - v) * f)

// The part of a line that lies in a box, as two fractions of its length; null: none does.
function within([a, b], box) {
  let from = 0, to = 1
  for (const [j, low, high] of [[0, box.left, box.right], [1, box.top, box.bottom]]) {
    const way = b[j] - a[j], ends = [(low - a[j]) / way, (high - a[j]) / way].sort((p, q) => p - q)
    if (way) { from = Math.max(from, ends[0]); to = Math.min(to, ends[1]) }
    else if (a[j] <= low || a[j] >= high) return null
  }
  return from < to ? [from, to] : null
}

// Whether two lines cross: the ends of each are on both sides of the other.
function cross([a, b], [c, d]) {
  const side = (p, q, r) => Math.sign((q[0] - p[0]) * (r[1] - p[1]) - (q[1] - p[1]) * (r[0] - p[0]))
  return side(a, b, c) !== side(a, b, d) && side(c, d, a) !== side(c, d, b)
}

// The width of a text as it is drawn.
const pen = document.createElement("canvas").getContext("2d")
function widthOf(text, size) {
  pen.font = `${size}px system-ui, sans-serif`
  return pen.measureText(text).width + 2
}

const escaped = text => text.replace(/[&<>]/g, c => ({"&": "&amp;", "<": "&lt;", ">": "&gt;"})[c])

// A text at the first place where it lies on nothing, as an annotation of `at`; null: there is none. A place is where
// the text begins, ends or has its centre, `to`, from `at`. With a leader the line to it passes what `may` lets it pass.
function placed(room, text, size, at, r, places, may, look) {
  const w = widthOf(text, size), h = size + 3, own = grown(around(at, r), 0.5)
  for (const {to: [dx, dy], side, leader} of places) {
    const left = at[0] + dx - w * {left: 0, center: 0.5, right: 1}[side], y = at[1] + dy
    const box = {left, right: left + w, top: y - h / 2, bottom: y + h / 2}, {frame} = room
    const inside = left >= frame.left && box.right <= frame.right && box.top >= frame.top && box.bottom <= frame.bottom
    if (!inside || room.boxes.some(b => overlap(b, {...box, left: left - 3, right: left + w + 3})) || room.lines.some(l => within(l, grown(box, 2)))) continue
    const length = Math.hypot(dx, dy), way = leader ? [along([at, [at[0] + dx, y]], (r + 1) / length), [at[0] + dx, y]] : null
    if (way && !may(way, own)) continue
    room.boxes.push(box)
    if (way) room.leaders.push(way), room.lines.push(way)
    const [x0, y0] = [room.xaxis.p2d(at[0] - room.xaxis._offset), room.yaxis.p2d(at[1] - room.yaxis._offset)].map(Math.log10)
    const line = leader ? {showarrow: true, ax: dx, ay: dy, standoff: r, arrowwidth: 1, arrowcolor: look.font.color}
      : {showarrow: false, xshift: dx, yshift: -dy}
    return {x: x0, y: y0, text: escaped(text), xanchor: side, yanchor: "middle", borderpad: 0, captureevents: false,
            arrowhead: 0, ...line, ...look, font: {size, ...look.font}}
  }
  return null
}

// What a leader may pass: no text and no marker but its own, none of these `lines`; `touching`: markers on its own.
const holds = (outer, b) => b.left >= outer.left && b.right <= outer.right && b.top >= outer.top && b.bottom <= outer.bottom
const passes = (room, lines, touching) => (way, own) =>
  !lines.some(l => cross(l, way))
  && !room.boxes.some(b => !holds(own, b) && !(touching && overlap(b, own)) && within(way, b))

// The label of a roof somewhere along its line, beside it or on a short leader.
const middleFirst = [0.5, 0.42, 0.58, 0.34, 0.66, 0.26, 0.74, 0.18, 0.82, 0.1, 0.9, 0.04, 0.96]
function roofLabel(room, trace, leader) {
  const size = wide() ? 12 : 10, h = size + 3, look = {name: "roof", font: {color: color("soft")}}
  const beside = flat => flat ? [-1, 1].flatMap(up => [3, 8].map(gap => ({to: [0, up * (h / 2 + gap)], side: "center"})))
    : [{to: [-5, -h / 2 - 3], side: "right"}, {to: [5, h / 2 + 3], side: "left"}]
  const led = d => [[-1, -1], [1, 1], [1, -1], [-1, 1]].map(([x, y]) =>
    ({to: [x * d, y * d], side: x < 0 ? "right" : "left", leader: true}))
  const near = flat => [[beside(flat), []]], far = [room.lines, room.leaders].flatMap(lines => [16, 26, 40, 60].map(d => [led(d), lines]))
  const ends = [0, trace.x.length - 1].map(k => centre({x: trace.x[k], y: trace.y[k]}, room.xaxis, room.yaxis))
  const part = within(ends, grown(room.frame, 0.5)), flat = Math.abs(ends[0][1] - ends[1][1]) < 1
  if (!part) return null
  const line = part.map(f => along(ends, f)), whole = plain(trace.text[1]), name = whole.replace(/ [\d.]+ \S*\/s$/, "")
  for (const text of wide() ? [whole] : [name])
    for (const [places, lines] of leader ? far : near(flat)) for (const f of middleFirst) {
      const found = placed(room, text, size, along(line, f), 0, places, passes(room, lines, false), look)
      if (found) return found
    }
  return null
}

// The name of a row beside its marker, or on a leader of up to 100 px.
const turns = [-45, 45, -135, 135, 0, 180, -90, 90, -20, 20, -160, 160, -70, 70, -110, 110,
  -32, 32, -148, 148, -58, 58, -122, 122].map(t => t * Math.PI / 180)
function nameOn(room, {row, x, y, r, more}) {
  const phase = phaseMark(row)
  const side = right => Math.abs(right) < 0.5 ? "center" : right < 0 ? "right" : "left"
  const away = d => turns.map(t => [Math.cos(t), Math.sin(t)]).map(([right, down]) =>
    ({to: [right * (r + d), down * (r + d)], side: side(right), leader: true}))
  const close = [[1, 0], [-1, 0], [0, -1], [0, 1]].map(([right, down]) =>
    ({to: [right * (r + 4), down * (r + 10)], side: side(right)}))
  const reach = (...far) => [...close, ...far.flatMap(away)]
  const far = reach(14, 28, 42, 56, 70, 85, 100)
  const ways = [[reach(14, 28, 42), room.lines, false], [far, room.leaders, false], [far, room.leaders, true]]
  const at = centre({x, y}, room.xaxis, room.yaxis), look = {name: "slowest", font: {color: color("ink")}}
  for (const width of [26, 18]) for (const [places, lines, touching] of ways) {
    const text = shortName(row, width) + phase + (row.time_ratio ? ` ${write(row.time_ratio, "ratio")}` : "") + (more ? ` +${more} more` : "")
    const found = placed(room, text, 11, at, r, places, passes(room, lines, touching), look)
    if (found) return found
  }
  return null
}
