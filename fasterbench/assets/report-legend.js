// The legend of the first chart: a button per entry. It filters by what bounds, or hides what the entry stands for.
const glyphs = {circle: "●", "circle-open": "○", square: "■", "square-open": "□", diamond: "◆", "diamond-open": "◇", x: "✕",
                "triangle-up": "▲", "triangle-up-open": "△", star: "★", "star-open": "☆", cross: "✚"}

const grouped = trace => other => trace.legendgroup ? other.legendgroup === trace.legendgroup : other.name === trace.name
const filters = trace => at("filter-bound") && [...at("filter-bound").options].some(o => o.value && o.value === trace.legendgroup)

function swatch(trace) {
  const {mode = "", marker = {}, line = {}} = trace
  if (!mode.includes("markers") && trace.type !== "bar") {
    return element("span", {className: `line ${line.dash ?? "solid"}`, style: `border-color: ${line.color}`})
  }
  const symbol = Array.isArray(marker.symbol) ? marker.symbol.at(-1) : marker.symbol
  const ink = typeof marker.line?.color === "string" && trace.name !== "whole model" ? marker.line.color : marker.color
  return element("span", {className: "glyph", textContent: glyphs[symbol] ?? "●", style: `color: ${ink}`})
}

function entry(figure, trace) {
  const hidden = trace.visible === "legendonly"
  const on = filters(trace) ? !state.filters.bound || state.filters.bound === trace.legendgroup : !hidden
  const press = () => pressed(figure, trace)
  return element("button", {type: "button", ariaPressed: String(on), onclick: press}, swatch(trace), ` ${plain(trace.name)}`)
}

// Names of traces are written for plotly, with entities.
const plain = text => new DOMParser().parseFromString(text, "text/html").body.textContent

function pressed(figure, trace) {
  if (filters(trace)) {
    state.filters.bound = state.filters.bound === trace.legendgroup ? "" : trace.legendgroup
    at("filter-bound").value = state.filters.bound
  } else for (const t of figure.data.filter(grouped(trace))) t.visible = t.visible === "legendonly" ? true : "legendonly"
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
