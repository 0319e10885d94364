// The legend of the first chart: a button per entry. It filters by what bounds, or hides what the entry stands for.
const glyphs = {circle: "●", "circle-open": "○", square: "■", "square-open": "□", diamond: "◆", "diamond-open": "◇",
                x: "✕", "triangle-up": "▲", "triangle-up-open": "△", star: "★", "star-open": "☆", cross: "✚"}

const numbered = "●■◆✚✕▲▼◀▶"   // symbols that plotly knows by number

const grouped = ({legendgroup, name}) => t => legendgroup ? t.legendgroup === legendgroup : t.name === name
const filters = trace => [...at("filter-bound")?.options ?? []].some(o => o.value && o.value === trace.legendgroup)

function swatch(trace) {
  const {mode = "", marker = {}, line = {}} = trace
  if (!mode.includes("markers") && trace.type !== "bar") {
    return element("span", {className: `line ${line.dash ?? "solid"}`, style: `border-color: ${line.color}`})
  }
  const symbol = Array.isArray(marker.symbol) ? marker.symbol.at(-1) : marker.symbol
  const ink = /^rgba/.test(marker.color) ? marker.line?.color : marker.color ?? line.color
  return element("span", {className: "glyph", textContent: glyphs[symbol] ?? numbered[symbol] ?? "●", style: `color: ${ink}`})
}

function entry(figure, trace) {
  const hidden = trace.visible === "legendonly"
  const on = filters(trace) ? !state.filters.bound || state.filters.bound === trace.legendgroup : !hidden
  const shown = {type: "button", ariaPressed: String(on), onclick: () => pressed(figure, trace)}
  return element("button", shown, swatch(trace), ` ${plain(trace.name)}`)
}

// Names of traces are written for plotly, with entities.
const plain = text => new DOMParser().parseFromString(text, "text/html").body.textContent

function pressed(figure, trace) {
  if (filters(trace)) {
    state.filters.bound = state.filters.bound === trace.legendgroup ? "" : trace.legendgroup
    at("filter-bound").value = state.filters.bound
  } else {
    const visible = trace.visible === "legendonly" ? true : "legendonly"
    for (const t of figure.data.filter(grouped(trace))) t.visible = visible
  }
  refresh()
}

// Roofs last; an entry once, even where two traces share it.
function showLegend() {
  const [figure] = tab.figures
  const named = (figure?.data ?? []).filter(t => t.name && t.showlegend !== false)
  const once = named.filter((t, i) => named.findIndex(grouped(t)) === i)
  const roof = t => t.legendgroup?.startsWith("roof") ?? false
  const focused = [...at("legend").children].indexOf(document.activeElement)
  at("legend").replaceChildren(...once.sort((a, b) => roof(a) - roof(b)).map(t => entry(figure, t)))
  at("legend").children[focused]?.focus()
}
