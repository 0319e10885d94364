// The legend of the first chart: a button per entry. It filters by what bounds, or hides what the entry stands for.
const glyphs = {circle: "●", "circle-open": "○", square: "■", "square-open": "□", diamond: "◆", "diamond-open": "◇",
                x: "✕", "triangle-up": "▲", "triangle-up-open": "△", star: "★", "circle-open-dot": "◉", "square-open-dot": "▣", "diamond-open-dot": "◈", "circle-cross": "⊕", "star-open": "☆", cross: "✚", arrow: "→", "line-ns-open": "┃"}

const numbered = "●■◆✚✕▲▼◀▶"   // symbols that plotly knows by number
const hatched = {"/": "▨", "\\": "▧", "-": "▤", "+": "▦", x: "▩"}

const grouped = ({legendgroup, name}) => t => legendgroup ? t.legendgroup === legendgroup : t.name === name
const filterOf = trace => ["bound", "phase"].find(f =>
  [...at(`filter-${f}`)?.options ?? []].some(o => o.value && o.value === trace.legendgroup))

function swatch(trace) {
  const {mode = "", marker = {}, line = {}} = trace
  if (!mode.includes("markers") && trace.type !== "bar") {
    return element("span", {className: `line ${line.dash ?? "solid"}`, style: `border-color: ${line.color}`})
  }
  const symbol = Array.isArray(marker.symbol) ? marker.symbol.at(-1) : marker.symbol
  const ink = /^rgba/.test(marker.color) ? marker.line?.color : marker.color ?? line.color
  const glyph = trace.type === "bar" ? hatched[marker.pattern?.shape] ?? "■" : glyphs[symbol] ?? numbered[symbol] ?? "●"
  return element("span", {className: "glyph", textContent: glyph, style: `color: ${ink}`})
}

function entry(figure, trace) {
  const hidden = trace.visible === "legendonly"
  const filter = filterOf(trace)
  const on = filter ? !state.filters[filter] || state.filters[filter] === trace.legendgroup : !hidden
  const shown = {type: "button", ariaPressed: String(on), onclick: () => pressed(figure, trace)}
  const name = plain(trace.name)
  return element("button", shown, swatch(trace), ` ${wide() ? name : name.replace("-bound", "").replace("whole ", "")}`)
}

// Names of traces are written for plotly, with entities.
const plain = text => new DOMParser().parseFromString(text, "text/html").body.textContent

function pressed(figure, trace) {
  const filter = filterOf(trace)
  if (filter) {
    state.filters[filter] = state.filters[filter] === trace.legendgroup ? "" : trace.legendgroup
    at(`filter-${filter}`).value = state.filters[filter]
  } else {
    const visible = trace.visible === "legendonly" ? true : "legendonly"
    for (const t of figure.data.filter(grouped(trace))) t.visible = visible
  }
  refresh()
}

// One line: an entry once, even where two traces share it; in a menu the roofs, whose labels are on their lines, and
// what does not fit.
function showLegend() {
  const [figure] = tab.figures
  const roof = t => t.legendgroup?.startsWith("roof") ?? false
  const named = (figure?.data ?? []).filter(t => t.name && (roof(t) || t.showlegend !== false))
  const once = named.filter((t, i) => named.findIndex(grouped(t)) === i)
  const focused = [...at("legend").querySelectorAll("button")].indexOf(document.activeElement)
  const open = at("roofs")?.open ?? false, roofs = once.filter(roof)
  const list = element("div", {className: "list"}, ...roofs.map(t => entry(figure, t)))
  const summary = element("summary", {textContent: "roofs"}), menu = element("details", {id: "roofs", className: "menu", open}, summary, list)
  const entries = once.filter(t => !roof(t)).map(t => entry(figure, t))
  at("legend").replaceChildren(...entries, menu)
  const below = () => menu.offsetTop > at("legend").firstChild.offsetTop + 8
  while (entries.length > 1 && below()) {
    list.prepend(entries.pop())
    summary.textContent = "more"
  }
  menu.hidden = !list.childElementCount
  at("legend").querySelectorAll("button")[focused]?.focus()
}
