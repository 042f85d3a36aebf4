// The calculator: evaluates the programs of window.CALCULATOR (docs/generated/calculator.js), which are the formulas of systems/formulas.
//
// No formula stands here. Whole numbers are BigInt, so results are Python's to the byte.
{
  const data = window.CALCULATOR
  const GIB = 2 ** 30
  const LIMIT = 2n ** 30n
  const SHAPE = ["d_model", "d_ff", "num_layers", "num_heads", "kv_heads"]
  const COUNTS = [...SHAPE, "vocab", "context", "batch"]
  const RATES = { fp32: 1e12, bf16: 1e12, bandwidth: 1e12 }
  const WORDS = { d_model: "the width", d_ff: "the feed-forward width", num_layers: "layers", num_heads: "heads", kv_heads: "heads of k and v", vocab: "the vocabulary", context: "the context", batch: "the batch", checkpoint: "the run length", memory: "memory", fp32: "the fp32 rate", bf16: "the bf16 rate", bandwidth: "the bandwidth" }
  const DEFAULTS = { size: "Llama 3.2 1B", context: 1024, batch: 4, precision: "bf16", attention: "flash", recomputed: "none", checkpoint: 1, optimizer_states: 2, gpu: "a100-80" }
  const OPERATORS = {
    "+": (a, b) => a + b,
    "-": (a, b) => a - b,
    "*": (a, b) => a * b,
    // All are positive: rounding toward zero is rounding down.
    "//": (a, b) => a / b,
    min: (a, b) => (a < b ? a : b),
    max: (a, b) => (a > b ? a : b),
  }

  function run(program, names) {
    const values = []
    for (const instruction of program.instructions) {
      if (Array.isArray(instruction)) values.push(OPERATORS[instruction[0]](values[instruction[1]], values[instruction[2]]))
      else values.push(typeof instruction === "string" ? names[instruction] : BigInt(instruction))
    }
    return values
  }

  const sum = (numbers) => numbers.reduce((a, b) => a + b, 0n)
  const programOf = (c) => data.programs[`${c.precision} ${c.attention} ${c.attention === "flash" && c.recomputed === "attention" ? "none" : c.recomputed}`]

  // Bytes by category at every moment of a step, its FLOPs, and the bytes that the optimizer moves.
  function evaluate(c) {
    const program = programOf(c)
    const values = run(program, c)
    const moments = Object.fromEntries(Object.entries(program.moments).map(([when, places]) => [when, places.map((place) => values[place])]))
    return { moments, flops: values[program.flops], moved: values[program.moved_bytes] }
  }

  function peak(c) {
    let most = 0n
    for (const bytes of Object.values(evaluate(c).moments)) {
      const all = sum(bytes)
      if (all > most) most = all
    }
    return most
  }

  // The largest batch or context that fits; 0 where even 1 does not.
  function largest(c, field, room) {
    let [low, high] = [0n, LIMIT]
    while (low < high) {
      const middle = (low + high + 1n) / 2n
      if (peak({ ...c, [field]: middle }) <= room) low = middle
      else high = middle - 1n
    }
    return low
  }

  function remedies(c) {
    const run = BigInt(Math.max(1, Math.round(Math.sqrt(Number(c.num_layers)))))
    const again = (length) => ({ recomputed: "blocks", checkpoint: length })
    return Object.entries({
      "bf16 autocast": { precision: "bf16" },
      "flash attention": { attention: "flash", recomputed: c.recomputed === "attention" ? "none" : c.recomputed },
      "attention's scores computed again": c.attention === "flash" ? {} : { recomputed: "attention" },
      "every block computed again": again(1n),
      [`blocks computed again in runs of ${run}`]: run > 1n ? again(run) : {},
      "all of it: bf16, flash, every block again": { precision: c.precision === "fp32" ? "bf16" : c.precision, attention: "flash", ...again(1n) },
    })
      .map(([name, change]) => [name, { ...c, ...change }])
      .filter(([, changed]) => peak(changed) < peak(c))
  }

  // For tests: the same configuration in, all numbers out, as text.
  data.evaluate = (c) => {
    const found = evaluate(Object.fromEntries(Object.entries(c).map(([k, v]) => [k, typeof v === "number" ? BigInt(v) : v])))
    return JSON.stringify(found, (_, value) => (typeof value === "bigint" ? String(value) : value))
  }

  const root = document.getElementById("calculator")
  const form = root.querySelector("form")
  const field = form.elements
  const [verdict, bars, key, most, time, near, frame, body] = [".verdict", ".bars", ".key", ".most", ".time", ".near", ".table-frame", "tbody"].map((s) => root.querySelector(s))

  const grouped = (n) => n.toLocaleString("en")
  const gib = (bytes) => (Number(bytes) / GIB).toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })
  const element = (tag, className, text) => Object.assign(document.createElement(tag), { className, textContent: text ?? "" })

  // The address's first [name, value] that names nothing here, until the reader types.
  let unknown = null

  // What is wrong with an entry, in words; null where nothing is.
  function wrong() {
    if (unknown) return [unknown[0], `no ${WORDS[unknown[0]] ?? unknown[0]} is named \u201c${unknown[1]}\u201d`]
    for (const name of [...COUNTS, ...(field.recomputed.value === "blocks" ? ["checkpoint"] : [])]) {
      const text = field[name].value.trim()
      if (!/^[0-9]+$/.test(text)) return [name, `${WORDS[name]} must be a whole number, not \u201c${text}\u201d`]
      if (BigInt(text) < 1n || BigInt(text) > LIMIT) return [name, `${WORDS[name]} must be from 1 to ${grouped(LIMIT)}`]
    }
    const [d, h, layers] = ["d_model", "num_heads", "num_layers"].map((name) => BigInt(field[name].value))
    if (d % (2n * h)) return ["num_heads", `a width of ${d} does not split into ${h} heads of even width`]
    if (h % BigInt(field.kv_heads.value)) return ["kv_heads", `${h} heads do not share ${field.kv_heads.value} heads of k and v evenly`]
    const run = field.recomputed.value === "blocks" ? BigInt(field.checkpoint.value) : 1n
    if (run > layers) return ["checkpoint", `a run of ${run} blocks is longer than the model, which has ${layers}`]
    for (const name of ["memory", ...Object.keys(RATES)]) {
      const number = Number(field[name].value)
      if (!(number > 0 && number < 1e6)) return [name, `${WORDS[name]} must be a number above 0 and below ${grouped(1e6)}`]
    }
    return null
  }

  function configuration() {
    const c = Object.fromEntries(COUNTS.map((name) => [name, BigInt(field[name].value.trim())]))
    for (const name of ["precision", "attention", "recomputed"]) c[name] = field[name].value
    c.checkpoint = c.recomputed === "blocks" ? BigInt(field.checkpoint.value) : 1n
    for (const name of ["optimizer_states", "embeddings"]) c[name] = BigInt(field[name].value)
    c.workspace_bytes = BigInt(data.gpus[field.gpu.value]?.workspace_bytes ?? 32 * 2 ** 20)
    return c
  }

  // The three moments that readers ask for: the highest of each group. Each moment is in one, so the peak is shown.
  const ENDS = /first block$|embedding$|of the first run$|that run$|whole run$/
  const GROUPS = {
    "the backward pass begins": (when) => !ENDS.test(when) && !when.startsWith("optimizer"),
    "the backward pass ends": (when) => ENDS.test(when),
    "the optimizer": (when) => when.startsWith("optimizer"),
  }

  function draw(moments, room) {
    const groups = Object.entries(GROUPS).map(([name, belongs]) => {
      const inside = Object.entries(moments).filter(([when]) => belongs(when))
      return [name, inside.reduce((a, b) => (sum(b[1]) > sum(a[1]) ? b : a))]
    })
    const widest = [room, ...groups.map(([, [, bytes]]) => sum(bytes))].reduce((a, b) => (a > b ? a : b))
    // A little more, so that the mark of the room is seen.
    const share = (bytes) => `${(Number(bytes) / Number(widest)) * 99}%`
    bars.replaceChildren(
      ...groups.map(([name, [, bytes]]) => {
        const line = element("div", "moment")
        const bar = element("div", "bar")
        bytes.forEach((n, i) => {
          if (!n) return
          const part = element("span", `part part-${i}`)
          part.style.width = share(n)
          part.title = `${data.categories[i]}: ${gib(n)} GiB`
          bar.append(part)
        })
        const limit = element("span", "room")
        limit.style.left = share(room)
        bar.append(limit)
        line.append(element("span", "name", name), bar, element("span", "total", `${gib(sum(bytes))} GiB`))
        return line
      }),
    )
    bars.setAttribute("aria-label", groups.map(([name, [, bytes]]) => `When ${name}: ${gib(sum(bytes))} GiB`).join("; "))
    const highest = groups.map(([, moment]) => moment[1]).reduce((a, b) => (sum(b) > sum(a) ? b : a))
    const named = (look, text) => {
      const item = element("span")
      item.append(element("span", `swatch ${look}`), text)
      return item
    }
    const parts = data.categories.flatMap((name, i) => (highest[i] ? [named(`part-${i}`, `${name} ${gib(highest[i])} GiB`)] : []))
    key.replaceChildren(...parts, named("room-key", `room ${gib(room)} GiB`))
  }

  // How many times their floor measured steps of the same precision, attention and similar work took: the three nearest.
  function overFloor(c, flops) {
    const rates = data.gpus[data.measured_on]
    // Measured on a GPU without a data sheet, or on none.
    if (!rates) return []
    const size = (point) => {
      const like = { ...c, precision: point.precision, attention: point.attention, recomputed: "none", optimizer_states: 2n, context: BigInt(point.context), batch: BigInt(point.batch) }
      for (const [name, value] of Object.entries(data.sizes[point.size])) like[name] = BigInt(value)
      const found = evaluate(like)
      const floor = Number(found.flops) / (c.precision === "fp32" ? rates.fp32 : rates.bf16) + Number(found.moved) / rates.bandwidth
      return { ...point, flops: Number(found.flops), over: point.ms / (floor * 1e3) }
    }
    const points = data.steps.filter((point) => point.precision === (c.precision === "pure_bf16" ? "bf16" : c.precision)).map(size)
    const alike = points.filter((point) => point.attention === c.attention)
    if (alike.length >= 3) points.splice(0, points.length, ...alike)
    points.sort((a, b) => Math.abs(Math.log(a.flops / flops)) - Math.abs(Math.log(b.flops / flops)))
    return points.slice(0, 3)
  }

  // The floor of a step in seconds, and how long it takes if it takes as many times its floor as similar steps did.
  function timeOf(c) {
    const { flops, moved } = evaluate(c)
    const rate = Number(field[c.precision === "fp32" ? "fp32" : "bf16"].value) * RATES.fp32
    const floor = Number(flops) / rate + Number(moved) / (Number(field.bandwidth.value) * RATES.bandwidth)
    const points = overFloor(c, Number(flops))
    const found = points.map((point) => point.over)
    return { floor, points, flops, fast: floor * Math.min(...found), slow: floor * Math.max(...found) }
  }

  const ms = (seconds) => `${(seconds * 1e3).toLocaleString("en", { maximumSignificantDigits: 3 })} ms`
  const among = ({ floor, points, fast, slow }) => (points.length ? `${ms(fast)} to ${ms(slow)}` : `at least ${ms(floor)}`)
  // What fits, in words where nothing does.
  const upTo = (most) => (most ? grouped(most) : "none")

  function smallest(c) {
    const fits = (gpu) => peak({ ...c, workspace_bytes: BigInt(gpu.workspace_bytes) }) <= BigInt(gpu.memory_bytes - data.context_bytes)
    const fitting = Object.values(data.gpus).filter(fits)
    if (!fitting.length) return "No GPU of the list is large enough."
    return `The smallest GPU of the list on which it fits: ${fitting.reduce((a, b) => (b.memory_bytes < a.memory_bytes ? b : a)).name}.`
  }

  function show() {
    const complaint = wrong()
    for (const input of form.querySelectorAll("input, select")) input.setAttribute("aria-invalid", complaint?.[0] === input.name)
    root.classList.toggle("invalid", Boolean(complaint))
    field.checkpoint.closest("label").hidden = field.recomputed.value !== "blocks"
    if (complaint) {
      verdict.className = "verdict bad"
      verdict.textContent = complaint[1]
      return
    }
    const c = configuration()
    const { moments } = evaluate(c)
    const need = peak(c)
    // The field shows the memory of a known GPU rounded.
    const total = BigInt(data.gpus[field.gpu.value]?.memory_bytes ?? Math.round(Number(field.memory.value) * GIB))
    const room = total > BigInt(data.context_bytes) ? total - BigInt(data.context_bytes) : 0n
    const fits = need <= room
    verdict.className = `verdict ${fits ? "good" : "bad"}`
    verdict.textContent = fits ? `Fits: ${gib(need)} GiB of ${gib(room)} GiB, ${gib(room - need)} GiB stay free.` : `Does not fit: ${gib(need)} GiB where there is room for ${gib(room)}, ${gib(need - room)} GiB too much.`
    draw(moments, room)
    const [batch, context] = [largest(c, "batch", room), largest(c, "context", room)]
    most.textContent = `Largest batch at context ${grouped(c.context)}: ${upTo(batch)}. Longest context at batch ${grouped(c.batch)}: ${upTo(context)}. ${smallest(c)}`
    frame.hidden = false
    body.replaceChildren(
      ...remedies(c).map(([name, changed]) => {
        const row = document.createElement("tr")
        row.insertCell().textContent = name
        for (const text of [gib(peak(changed)), upTo(largest(changed, "batch", room)), upTo(largest(changed, "context", room)), among(timeOf(changed))]) Object.assign(row.insertCell(), { className: "r", textContent: text })
        return row
      }),
    )
    const { floor, flops, points, fast, slow } = timeOf(c)
    const tokens = Number(c.batch * c.context)
    let text = `${(Number(flops) / 1e12).toLocaleString("en", { maximumSignificantDigits: 4 })} TFLOP a step; the floor is ${ms(floor)}.`
    if (points.length) {
      const days = (1e9 / (tokens / slow) / 86400).toLocaleString("en", { maximumSignificantDigits: 3 })
      text += ` Similar steps took ${(fast / floor).toFixed(1)} to ${(slow / floor).toFixed(1)} times their floor; at that ratio, this one needs ${among({ floor, points, fast, slow })}. That is ${grouped(Math.round(tokens / slow))} to ${grouped(Math.round(tokens / fast))} tokens/s, or up to ${days} days for a billion tokens.`
      const list = element("ul", "")
      list.append(...points.map((p) => element("li", "", `${p.size} at context ${p.context}, batch ${p.batch}, ${p.precision}, ${p.attention === "flash" ? "flash" : "plain"}: ${ms(p.ms / 1e3)}, ${p.over.toFixed(1)} times the floor`)))
      near.replaceChildren(`Similar steps, measured on the ${data.gpus[data.measured_on].name}:`, list)
    }
    time.textContent = text
    const measured = data.memory.find((point) => ["size", "context", "batch", "precision", "attention"].every((name) => String(point[name]) === String(name in c ? c[name] : field[name].value)) && point.checkpoint === (c.recomputed === "blocks" ? Number(c.checkpoint) : 0) && c.recomputed !== "attention" && c.optimizer_states === 2n && c.embeddings === 2n && Number(c.vocab) === data.vocab)
    if (measured && field.gpu.value === data.measured_on) verdict.textContent += ` Measured: ${gib(measured.bytes)} GiB.`
  }

  // Without groups there are as many heads of k and v as of q, also while they are typed.
  let grouped_heads = true
  // The fields of a GPU's data sheet.
  const sheetOf = (gpu) => ({ memory: +(gpu.memory_bytes / GIB).toFixed(2), ...Object.fromEntries(Object.keys(RATES).map((rate) => [rate, +(gpu[rate] / RATES[rate]).toFixed(3)])) })

  function choose(name) {
    if (name === "num_heads" && !grouped_heads) field.kv_heads.value = field.num_heads.value
    if (name === "size" && data.sizes[field.size.value]) for (const [key, value] of Object.entries(data.sizes[field.size.value])) field[key].value = value
    if (SHAPE.includes(name)) field.size.value = ""
    const gpu = data.gpus[field.gpu.value]
    if (name === "gpu" && gpu) {
      for (const [key, value] of Object.entries(sheetOf(gpu))) field[key].value = value
    }
    if (name === "memory" || name in RATES) field.gpu.value = ""
  }

  const NAMES = ["size", ...COUNTS, "embeddings", "precision", "attention", "recomputed", "checkpoint", "optimizer_states", "gpu", "memory", ...Object.keys(RATES)]

  // The whole state stands in the address, so a link gives the same page.
  function remember() {
    const state = new URLSearchParams(NAMES.filter((name) => field[name].value !== "").map((name) => [name, field[name].value]))
    history.replaceState(null, "", `#${state}`)
  }

  function recall() {
    const state = new URLSearchParams(location.hash.slice(1))
    const known = (name, value) => field[name].tagName === "INPUT" || [...field[name].options].some((option) => option.value === value)
    unknown = [...state].find(([name, value]) => NAMES.includes(name) && !known(name, value))
    for (const [name, value] of Object.entries(DEFAULTS)) field[name].value = value
    for (const name of ["size", "gpu"]) {
      const value = state.get(name)
      if (value !== null && known(name, value)) field[name].value = value
      choose(name)
    }
    for (const [name, value] of state) if (NAMES.includes(name) && known(name, value)) field[name].value = value
    if (state.has("num_heads") && !state.has("kv_heads")) field.kv_heads.value = field.num_heads.value
    // An address may name a size or a GPU beside other numbers than its own.
    const differs = (numbers, names) => numbers && names.some((name) => field[name].value !== String(numbers[name]))
    if (differs(data.sizes[field.size.value], SHAPE)) field.size.value = ""
    const gpu = data.gpus[field.gpu.value]
    if (gpu && differs(sheetOf(gpu), ["memory", ...Object.keys(RATES)])) field.gpu.value = ""
    show()
  }

  field.size.append(...Object.keys(data.sizes).map((name) => new Option(data.labels[name] ?? name, name)), new Option("my own", ""))
  field.gpu.append(...Object.entries(data.gpus).map(([name, gpu]) => new Option(gpu.name, name)), new Option("my own", ""))
  form.hidden = false
  field.num_heads.addEventListener("focus", () => (grouped_heads = field.kv_heads.value !== field.num_heads.value))
  form.addEventListener("submit", (event) => event.preventDefault())
  form.addEventListener("input", ({ target }) => {
    unknown = null
    choose(target.name)
    show()
    remember()
  })
  addEventListener("hashchange", recall)
  recall()
}
