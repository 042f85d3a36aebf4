// The results explorer: filter, draw, sort and download the lines of window.RESULTS (docs/generated/explorer.js).
//
// Filters with few values are lists of them; words, separated by commas, are looked for in the whole line, and a word after a minus must not be
// in it. What is chosen stands in the URL. The table shows a page of lines at a time; the chart, sorting and downloads take all that match.
{
  const PAGE = 100
  const LISTS = ["GPU", "stem", "size", "context", "precision", "metric"]
  const FILTERS = [...LISTS, "words"]
  const { columns, labels, texts, rows } = window.RESULTS
  const at = (name) => columns.indexOf(name)
  const firstNumber = at("context")
  // A row begins with how many of its first cells are those of the row before.
  let row = []
  const lines = rows.map(([same, ...rest]) => {
    row = [...row.slice(0, same), ...rest]
    return row.map((cell, i) => (i < firstNumber ? texts[cell] : cell))
  })
  // What is asked for stands near the front, where a phone shows it.
  const ORDER = ["size", "value", "unit", "context", "precision", "metric", "stem", "GPU", "samples", "configuration"]
  const root = document.getElementById("explorer")
  const [form, status, body, more, chart] = ["form", "[role=status]", "tbody", ".more", ".chart"].map((s) => root.querySelector(s))
  const presets = [...root.querySelectorAll(".presets a")]
  const heads = [...root.querySelectorAll("thead th")]
  const state = { chosen: {}, by: null, order: null, shown: PAGE }

  const compare = (a, b) =>
    typeof a === "number" && typeof b === "number"
      ? a - b
      : (typeof b === "number") - (typeof a === "number") || String(a ?? "").localeCompare(String(b ?? ""), "en", { numeric: true })

  // Lines that every filter lets pass; without one of them, to see what else it could be set to.
  function matching(except) {
    const wanted = LISTS.filter((name) => state.chosen[name] && name !== except)
    const phrases = (state.chosen.words ?? "").toLowerCase().split(",").map((phrase) => phrase.trim()).filter((phrase) => phrase.replace("-", ""))
    return lines.filter((line) => {
      if (!wanted.every((name) => String(line[at(name)] ?? "") === state.chosen[name])) return false
      const text = phrases.length ? line.join(" ").toLowerCase() : ""
      return phrases.every((phrase) => (phrase.startsWith("-") ? !text.includes(phrase.slice(1)) : text.includes(phrase)))
    })
  }

  function sorted(found) {
    if (!state.order) return found
    const column = at(state.by)
    const sign = state.order === "ascending" ? 1 : -1
    // What has no number stands last in both directions.
    const empty = (line) => line[column] === null || line[column] === ""
    return [...found].sort((a, b) => empty(a) - empty(b) || sign * compare(a[column], b[column]))
  }

  // Units that a number of this size is read in, the largest first: its least value, what it is divided by, its name.
  const UNITS = {
    ms: [[1000, 1000, "s"], [1, 1, "ms"], [0, 1e-3, "µs"]],
    bytes: [[2 ** 30, 2 ** 30, "GiB"], [2 ** 20, 2 ** 20, "MiB"], [2 ** 10, 2 ** 10, "KiB"], [0, 1, "bytes"]],
    FLOP: [[1e12, 1e12, "TFLOP"], [1e9, 1e9, "GFLOP"], [0, 1, "FLOP"]],
    parameters: [[1e9, 1e9, "billion"], [1e6, 1e6, "million"], [0, 1, "parameters"]],
  }

  function scaleOf(value, unit) {
    const [, by, name] = UNITS[unit]?.find(([least]) => Math.abs(value) >= least) ?? [0, 1, unit]
    return { by, unit: name }
  }

  function format(value, digits = 21) {
    if (typeof value !== "number") return value ?? ""
    const large = Math.abs(value) >= 1e15 || (value !== 0 && Math.abs(value) < 1e-3)
    return large ? Number(value.toPrecision(digits)).toExponential() : value.toLocaleString("en", { maximumSignificantDigits: digits })
  }

  function fillLists() {
    for (const name of LISTS) {
      const list = form.elements[name]
      const offered = new Set(matching(name).map((line) => line[at(name)]))
      // Every GPU can be chosen: one without such lines clears the other filters.
      const values = [...(name === "GPU" ? new Set(lines.map((line) => line[at(name)])) : offered)].filter((v) => v !== null && v !== "")
      values.sort(compare)
      const label = (value) => ((name === "size" && labels[value]) || String(value)) + (offered.has(value) ? "" : ": other results")
      list.replaceChildren(new Option("all", ""), ...values.map((value) => new Option(label(value), value)))
      list.value = state.chosen[name] ?? ""
    }
    form.elements.words.value = state.chosen.words ?? ""
  }

  function cell(row, line, name) {
    const value = line[at(name)]
    const made = row.insertCell()
    const unit = line[at("unit")]
    const scale = typeof line[at("value")] === "number" ? scaleOf(line[at("value")], unit) : { by: 1, unit }
    if (name === "value" && typeof value === "number") {
      // The whole number is there for who points at it.
      made.textContent = Number.isInteger(value) && !UNITS[unit] ? format(value) : format(value / scale.by, 4)
      made.title = `${format(value)} ${unit}`
      made.dataset.value = value
    } else if (name === "unit") made.textContent = scale.unit
    else made.textContent = format(value)
    if (typeof value === "number") made.className = "r"
  }

  function show() {
    const found = sorted(matching())
    // What no line has, and what was chosen above, is no column.
    const shownColumns = ORDER.filter((name) => !state.chosen[name] && (!found.length || found.some((line) => line[at(name)] !== null && line[at(name)] !== "")))
    heads.forEach((head, i) => (head.hidden = !shownColumns.includes(ORDER[i])))
    body.replaceChildren(
      ...found.slice(0, state.shown).map((line) => {
        const row = document.createElement("tr")
        for (const name of shownColumns) cell(row, line, name)
        return row
      }),
    )
    const shown = Math.min(state.shown, found.length)
    status.textContent = `${found.length.toLocaleString("en")} of ${lines.length.toLocaleString("en")} lines match; ${shown} are shown.`
    more.hidden = shown === found.length
    draw()
  }

  function changed() {
    state.shown = PAGE
    fillLists()
    show()
    const search = new URLSearchParams(FILTERS.filter((name) => state.chosen[name]).map((name) => [name, state.chosen[name]]))
    history.replaceState(null, "", `#${String(search) || "all"}`)
    for (const link of presets) link.setAttribute("aria-current", String(new URLSearchParams(link.hash.slice(1))) === String(search))
  }

  // What the URL says; the first of the ready-made choices where it says nothing. A value that no line has is left out and named.
  function recall() {
    const said = location.hash.slice(1)
    const search = new URLSearchParams(said === "all" ? "" : said.includes("=") ? said : presets[0].hash.slice(1))
    const known = (name) => name === "words" || lines.some((line) => String(line[at(name)] ?? "") === search.get(name))
    const usable = (name) => FILTERS.includes(name) && known(name)
    state.chosen = Object.fromEntries(FILTERS.filter((name) => search.get(name) && usable(name)).map((name) => [name, search.get(name)]))
    const unknown = [...search].filter(([name, value]) => value && !usable(name)).map(([name, value]) => ` No line has ${name} “${value}”.`)
    changed()
    status.textContent += unknown.join("")
  }

  // The chart. -----------------------------------------------------------------------------------------------------------------------
  const MOST = { curves: 10, bars: 20 }
  const HEIGHT = 300

  function mark(tag, attributes, text = "") {
    const made = document.createElementNS("http://www.w3.org/2000/svg", tag)
    for (const [name, value] of Object.entries(attributes)) made.setAttribute(name, value)
    made.textContent = text
    return made
  }

  // One series for all contexts of what is otherwise the same configuration; its name is what tells it from the others.
  function seriesOf(found) {
    const parts = (line) => [...["GPU", "size", "precision"].map((name) => line[at(name)]), ...line[at("configuration")].split(", ")]
    const all = found.map(parts)
    const everywhere = (part) => all.every((each) => each.includes(part))
    const series = new Map()
    found.forEach((line, i) => {
      const name = all[i].filter((part) => part && !everywhere(part)).join(", ")
      series.set(name, [...(series.get(name) ?? []), { x: line[at("context")], y: line[at("value")] }])
    })
    return series
  }

  function draw() {
    const found = matching().filter((line) => typeof line[at("value")] === "number")
    const metrics = new Set(found.map((line) => line[at("metric")]))
    if (!found.length) return chart.replaceChildren("Nothing to draw: no line with a number matches.")
    if (metrics.size > 1) return chart.replaceChildren(`${metrics.size} metrics match: choose one to see it drawn.`)
    const series = seriesOf(found)
    const long = [...series.values()].filter((points) => new Set(points.map(({ x }) => x)).size > 1).length
    const kind = long * 2 >= series.size ? "curves" : "bars"
    const count = kind === "curves" ? series.size : found.length
    if (count > MOST[kind]) return chart.replaceChildren(`${count} ${kind} match: narrow them down to ${MOST[kind]} to see them drawn.`)
    const most = Math.max(...found.map((line) => line[at("value")]))
    const scale = scaleOf(most, found[0][at("unit")])
    const width = chart.clientWidth
    pen.font = `12px ${getComputedStyle(chart).fontFamily}`
    const title = `${[...metrics][0]}${scale.unit ? `, ${scale.unit}` : ""}`
    const svg = mark("svg", { width, role: "img", "aria-label": `${title}: the lines of the table below` })
    svg.append(mark("text", { x: 0, y: 12, class: "title" }, title))
    const height = { curves: drawLines, bars: drawBars }[kind](svg, series, scale, width)
    for (const [name, value] of Object.entries({ height, viewBox: `0 0 ${width} ${height}` })) svg.setAttribute(name, value)
    chart.replaceChildren(svg)
  }

  const pen = document.createElement("canvas").getContext("2d")
  const widthOf = (text) => Math.ceil(pen.measureText(text).width)
  const widest = (texts) => Math.max(0, ...texts.map(widthOf))

  // A name in rows of at most this width.
  const wrapped = (name, width) =>
    name.split(" ").reduce((rows, word) => {
      const joined = [...rows.slice(-1), word].join(" ")
      return widthOf(joined) <= width ? [...rows.slice(0, -1), joined] : [...rows, word]
    }, [])

  function drawLines(svg, series, scale, width) {
    const all = [...series.values()].flat()
    const contexts = [...new Set(all.map(({ x }) => x))].sort((a, b) => a - b)
    const values = all.map(({ y }) => y / scale.by)
    const [low, high] = [Math.min(...values), Math.max(...values)]
    const logarithmic = low > 0 && high / low > 8
    const of = logarithmic ? Math.log : (v) => v
    const floor = logarithmic ? low : 0
    const named = Math.min(width * 0.4, widest([...series.keys()]))
    const ticks = logarithmic ? ticksOfDecades(low, high) : [0, 0.25, 0.5, 0.75, 1].map((share) => share * high)
    for (const points of series.values()) points.sort((a, b) => a.x - b.x)
    const room = (rows) => 14 * rows.length + 4
    const labels = [...series].map(([name, points]) => ({ rows: wrapped(name, named), value: points.at(-1).y / scale.by }))
    // As high as the names need.
    const height = Math.max(HEIGHT, labels.reduce((sum, { rows }) => sum + room(rows), 46))
    const [left, right, top, bottom] = [widest(ticks.map((tick) => format(tick, 3))) + 12, width - named - 8, 26, height - 34]
    const x = (v) => left + 14 + ((right - left - 20) * contexts.indexOf(v)) / Math.max(1, contexts.length - 1)
    const y = (v) => bottom - ((bottom - top) * (of(v) - of(floor))) / (of(high) - of(floor) || 1)
    // Where the contexts' numbers would touch, every second or third of them.
    const every = Math.ceil((contexts.length * 44) / (right - left))
    for (const context of contexts.filter((_, i) => (contexts.length - 1 - i) % every === 0)) svg.append(mark("text", { x: x(context), y: bottom + 16, "text-anchor": "middle" }, format(context)))
    svg.append(mark("text", { x: (left + right) / 2, y: height - 2, "text-anchor": "middle" }, "context, tokens"))
    for (const tick of ticks) {
      svg.append(mark("line", { x1: left, x2: right, y1: y(tick), y2: y(tick), class: "grid" }))
      svg.append(mark("text", { x: left - 6, y: y(tick) + 4, "text-anchor": "end" }, format(tick, 3)))
    }
    for (const [name, points] of series) {
      const group = mark("g", { class: "series" })
      group.append(mark("polyline", { points: points.map((p) => `${x(p.x)},${y(p.y / scale.by)}`).join(" ") }))
      for (const p of points) {
        const dot = mark("circle", { cx: x(p.x), cy: y(p.y / scale.by), r: 3.5 })
        dot.append(mark("title", {}, `${name} at ${p.x}: ${format(p.y / scale.by, 4)} ${scale.unit}`.trim()))
        group.append(dot)
      }
      svg.append(group)
    }
    // Names that would cover each other move down, and up again from the bottom.
    for (const label of labels) label.y = y(label.value)
    labels.sort((a, b) => a.y - b.y)
    labels.forEach((label, i) => {
      if (i) label.y = Math.max(label.y, labels[i - 1].y + room(labels[i - 1].rows))
    })
    labels.reduceRight((below, label) => (label.y = Math.min(label.y, below - room(label.rows))), bottom + 14)
    for (const { rows, y: place } of labels) rows.forEach((row, i) => svg.append(mark("text", { x: right + 6, y: place + 4 + 14 * i }, row)))
    return height
  }

  function ticksOfDecades(low, high) {
    const ticks = []
    for (let decade = 10 ** Math.floor(Math.log10(low)); decade <= high; decade *= 10) {
      for (const step of [1, 2, 5]) if (decade * step >= low && decade * step <= high) ticks.push(decade * step)
    }
    return ticks
  }

  function drawBars(svg, series, scale, width) {
    const bars = [...series].flatMap(([name, points]) => points.map((p) => [[name, p.x && `context ${p.x.toLocaleString("en")}`].filter(Boolean).join(", "), p.y / scale.by]))
    // Names stand before their bars; where they would take more than half of the width, above them, in as many rows as they need.
    const named = widest(bars.map(([name]) => name)) + 8
    const above = named > width / 2
    const room = above ? 0 : named
    const step = above ? 20 : Math.min(26, (HEIGHT - 30) / bars.length)
    const most = Math.max(...bars.map(([, value]) => value))
    const length = (value) => (Math.max(0, value) / most) * (width - room - 60)
    let top = 24
    for (const [name, value] of bars) {
      for (const row of above ? wrapped(name, width) : [name]) {
        svg.append(mark("text", above ? { x: 0, y: top + 10 } : { x: room - 6, y: top + step / 2 + 4, "text-anchor": "end" }, row))
        if (above) top += 14
      }
      svg.append(mark("rect", { x: room, y: top + 2, width: length(value), height: Math.max(1, step - (above ? 10 : 4)) }))
      svg.append(mark("text", { x: room + length(value) + 5, y: top + (above ? 11 : step / 2 + 4) }, format(value, 3)))
      top += step
    }
    return Math.max(HEIGHT, top)
  }

  function download(name, type, text) {
    const link = document.createElement("a")
    link.href = URL.createObjectURL(new Blob([text], { type }))
    link.download = name
    link.click()
    setTimeout(() => URL.revokeObjectURL(link.href), 1000)
  }

  const cells = (line) => ORDER.map((name) => line[at(name)])
  const quoted = (cell) => (/[",\n]/.test(cell) ? `"${String(cell).replaceAll('"', '""')}"` : String(cell ?? ""))
  const WRITERS = {
    csv: () => download("results.csv", "text/csv", [ORDER, ...sorted(matching()).map(cells)].map((l) => l.map(quoted).join(",") + "\n").join("")),
    json: () => {
      const found = sorted(matching()).map((line) => Object.fromEntries(ORDER.map((name) => [name, line[at(name)]])))
      download("results.json", "application/json", JSON.stringify(found, null, 1))
    },
  }

  form.addEventListener("submit", (event) => event.preventDefault())
  form.addEventListener("input", ({ target }) => {
    state.chosen[target.name] = target.value
    if (target.name === "GPU" && !matching().length) state.chosen = { GPU: target.value }
    changed()
  })
  form.addEventListener("reset", (event) => {
    event.preventDefault()
    state.chosen = {}
    changed()
  })
  more.addEventListener("click", () => {
    state.shown += PAGE
    show()
  })
  for (const [kind, write] of Object.entries(WRITERS)) root.querySelector(`[data-download=${kind}]`).addEventListener("click", write)
  // tablesort.js, which every page loads before this, makes the buttons.
  addSortButtons(heads, (column, order) => {
    Object.assign(state, { by: ORDER[column], order })
    show()
  })
  addEventListener("hashchange", recall)
  let drawn = chart.clientWidth
  new ResizeObserver(() => {
    if (chart.clientWidth === drawn) return
    drawn = chart.clientWidth
    draw()
  }).observe(chart)
  recall()
}
