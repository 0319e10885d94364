"use strict"
const element = (tag, props = {}, ...children) => { const e = Object.assign(document.createElement(tag), props); e.append(...children); return e }
const at = id => document.getElementById(id)

// The libraries are in this file as compressed text; as scripts of the page they then run in turn.
const bytes = text => Uint8Array.from(atob(text), c => c.charCodeAt(0))
const unpack = async text => new Response(new Blob([bytes(text)]).stream().pipeThrough(new DecompressionStream("gzip"))).text()
async function libraries() {
  for (const s of document.querySelectorAll(".packed")) document.body.append(element("script", {textContent: await unpack(s.textContent)}))
}

// Numbers, as the rest of the package prints them: SI prefixes, "?" for what is unknown.
function si(x, unit) {
  const k = x ? Math.max(-5, Math.min(6, Math.floor(Math.log10(Math.abs(x) * 1.000005) / 3))) : 0
  return `${(x / 1000 ** k).toFixed(x ? 2 : 0)} ${["f", "p", "n", "µ", "m", "", "k", "M", "G", "T", "P", "E"][k + 5]}${unit}`
}
const formats = {
  "": x => String(x), "%": x => x.toFixed(1) + " %", share: x => (100 * x).toFixed(1) + " %", ratio: x => x.toFixed(3),
  "FLOP/B": x => x === Infinity ? "∞" : x.toFixed(2), "GFLOP/s": x => si(1e9 * x, "FLOP/s"),
}
const show = (x, unit) => x === null ? "?" : x === "" ? "" : (formats[unit] ?? (y => si(y, unit)))(x)

const data = JSON.parse(at("data").textContent)
const config = {displaylogo: false, responsive: true, modeBarButtonsToRemove: ["select2d", "lasso2d", "autoScale2d"], displayModeBar: innerWidth > 700 ? "hover" : false}
let kind, rows, table, charts, shown

// What the filters let through. The root of a model has no name.
const nameOf = row => row.name || "(model)"
function passes(row) {
  const text = at("text").value.toLowerCase()
  return data.filters.every(f => !at(f.field).value || String(row[f.field]) === at(f.field).value)
      && (at("moves").checked || row.category !== "data movement")
      && (!text || [nameOf(row), row.operator ?? ""].some(s => s.toLowerCase().includes(text)))
}

// The markers and bars of the rows that are shown; what stands for no row stays.
function part(trace) {
  if (!trace.customdata) return trace
  const keep = o => Object.fromEntries(Object.entries(o).map(([k, v]) => [k, Array.isArray(v) ? v.filter((_, i) => shown.has(trace.customdata[i])) : v]))
  return {...keep(trace), marker: keep(trace.marker)}
}

function refresh() {
  shown = new Set(rows.filter(passes).map(r => r.index))
  table.setFilter(r => shown.has(r.index))
  kind.figures.forEach((f, i) => Plotly.react(charts[i], f.data.map(part), f.layout, config))
  const sum = field => rows.reduce((s, r) => s + (shown.has(r.index) ? r[field] : 0), 0)
  const left = kind.left_out ? `, and ${kind.left_out} faster ones that are not in this file` : ""
  const time = kind.columns.some(c => c.field === "share") ? `; ${show(sum("time_s"), "s")}, ${show(sum("share"), "share")} of the time` : ""
  at("shown").textContent = `${shown.size} of ${rows.length} rows${left}${time}`
}

// A click on a marker goes to its row, a click on a row shows its marker. A click on the legend is the filter of what bounds; on a page without one plotly does what it does.
function draw(figure) {
  const chart = element("div")
  at("charts").append(element("figure", {ariaLabel: figure.alt}, chart))
  if (innerWidth <= 700) for (const label of figure.layout.annotations ?? []) label.font.size = 9
  Plotly.newPlot(chart, figure.data, figure.layout, config)
  chart.on("plotly_click", e => goTo(e.points[0].customdata))
  chart.on("plotly_legendclick", e => !at("bound") || isolate(e.data[e.curveNumber].legendgroup))
  return chart
}

function goTo(index) {
  if (index === undefined) return
  table.deselectRow()
  table.selectRow(index)
  table.scrollToRow(index, "center", true)
}

function isolate(bound) {
  if (bound) at("bound").value = at("bound").value === bound ? "" : bound
  refresh()
  return false
}

function pointAt(index) {
  const curveNumber = charts[0].data.findIndex(t => t.customdata?.includes(index)), trace = charts[0].data[curveNumber]
  if (trace) Plotly.Fx.hover(charts[0], [{curveNumber, pointNumber: trace.customdata.indexOf(index)}], [trace.yaxis === "y2" ? "x2y2" : "xy"])
}

function column(c) {
  const common = {field: c.field, title: c.title, visible: c.visible, headerTooltip: c.title, download: true,
                  titleDownload: c.unit_text ? `${c.field} [${c.unit_text}]` : c.field, accessorDownload: x => x === Infinity ? "inf" : x}
  const name = c.field === "name", number = x => typeof x === "number" ? x : -Infinity
  if (c.text) return {...common, formatter: name ? cell => document.createTextNode(nameOf(cell.getData())) : "plaintext", sorter: "alphanum", tooltip: true, frozen: name && innerWidth > 700, minWidth: name ? 140 : 90, maxInitialWidth: 300}
  return {...common, formatter: cell => show(cell.getValue(), c.unit), sorter: (a, b) => number(a) - number(b) || 0, headerSortStartingDir: "desc",
          hozAlign: "right", headerHozAlign: "right", headerWordWrap: true, width: 112}
}

// Headers can be reached and pressed by keyboard.
function pressable(header) {
  header.tabIndex = 0
  header.onkeydown = e => { if (e.key === "Enter" || e.key === " ") { e.preventDefault(); header.click() } }
}

function options(f) {
  const values = [...new Set(rows.map(r => r[f.field]))].filter(v => v).sort()
  at(f.field).replaceChildren(element("option", {value: "", textContent: "all"}), ...values.map(v => element("option", {value: v, textContent: v})))
  at(f.field).parentElement.hidden = values.length < 1
}

function choose(name) {
  kind = data.kinds.find(k => k.name === name)
  rows = kind.rows.map((r, index) => Object.fromEntries([["index", index], ...kind.columns.map((c, i) => [c.field, r[i] === "inf" ? Infinity : r[i]])]))
  data.filters.forEach(options)
  at("moves").parentElement.hidden = !kind.columns.some(c => c.field === "category")
  table?.destroy()
  at("charts").replaceChildren()
  charts = kind.figures.map(draw)
  table = new Tabulator("#table", {data: rows, index: "index", columns: kind.columns.map(column), maxHeight: "34rem", layout: "fitDataFill",
                                   nestedFieldSeparator: false, selectableRows: 1, placeholder: "No rows"})
  table.on("rowClick", (_, row) => pointAt(row.getData().index))
  table.on("tableBuilt", () => {
    document.querySelectorAll("#table .tabulator-sortable").forEach(pressable)
    refresh()
    document.body.dataset.ready = name
  })
}

async function start() {
  await libraries()
  const first = data.kinds[0]
  const radio = k => element("input", {type: "radio", name: "kind", value: k.name, checked: k === first, onchange: () => choose(k.name)})
  at("kinds").append(...data.kinds.map(k => element("label", {}, radio(k), ` ${k.title}`)))
  at("kinds").hidden = data.kinds.length < 2
  const field = (text, input) => element("label", {}, `${text} `, input)
  at("filters").append(
    ...data.filters.map(f => field(f.title, element("select", {id: f.field}))),
    field("name or operator", element("input", {id: "text", type: "search", size: 12})),
    field("data movement", element("input", {id: "moves", type: "checkbox", checked: true})),
    element("button", {id: "csv", type: "button", textContent: "CSV of these rows", onclick: () => table.download("csv", `${data.file}-${kind.name}.csv`)}))
  at("filters").oninput = refresh
  document.forms[0].onsubmit = e => e.preventDefault()
  choose(first.name)
}
start().catch(e => { at("trouble").hidden = false; at("trouble").textContent = `This browser cannot show the report (${e.message}); a browser of 2023 or newer can.` })
