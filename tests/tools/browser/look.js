// What test_every_page.py asks of a page. Each function returns its findings as texts.
window.look = (() => {
    const all = (selector) => [...document.querySelectorAll(selector)]
    const shown = (selector) => all(selector).filter((one) => one.checkVisibility())
    const box = (one) => one.getBoundingClientRect()
    const name = (one) => one.textContent.trim().slice(0, 40)
    const label = (table) => table.closest(".table-frame").getAttribute("aria-label")
    const isText = (node) => node.nodeType === Node.TEXT_NODE && node.data.trim()
    const says = (one) => [...one.childNodes].some(isText)
    const tables = () => shown("article table.data").filter((one) => !one.closest("#explorer"))
    // In a drawing a pixel is as large as the drawing makes it.
    const letters = (one) =>
        parseFloat(getComputedStyle(one).fontSize) * (one.closest("svg")?.getScreenCTM().a ?? 1)
    const wordBoxes = (one) => {
        const words = document.createRange()
        words.selectNodeContents(one)
        return [...words.getClientRects()].filter((at) => at.width > 1)
    }
    const texts = function* (skipped) {
        const walker = document.createTreeWalker(document.querySelector("article"), NodeFilter.SHOW_TEXT)
        for (let text; (text = walker.nextNode()); ) {
            const within = text.parentElement
            if (within.checkVisibility() && !within.closest(skipped)) yield [text, within]
        }
    }

    // Texts whose ancestors have the same tags and classes look alike: axe reads the first.
    const markFirst = () => {
        const seen = new Set()
        const kind = (one) => one && `${one.localName}.${one.className} ${kind(one.parentElement)}`
        for (const element of shown("body *")) {
            if (!says(element) || seen.has(kind(element))) continue
            seen.add(kind(element))
            element.dataset.first = ""
        }
    }

    const openFolds = () => all("details").forEach((fold) => (fold.open = true))

    const fits = () => {
        const leaves = (word) => {
            const [own, drawing] = [word, word.ownerSVGElement].map(box)
            return own.width && (own.left < drawing.left - 1 || own.top < drawing.top - 1
                || own.right > drawing.right + 1 || own.bottom > drawing.bottom + 1)
        }
        const isWide = (one) => one.scrollWidth > one.clientWidth + 1
        const shaded = (one) => getComputedStyle(one).backgroundImage.includes("gradient")
        return [
            ...(document.documentElement.scrollWidth > innerWidth ? ["wider than the screen"] : []),
            ...shown("article math").filter((one) => box(one).width < 2)
                .map((one) => `nothing to see of the formula ${one.getAttribute("alttext")}`),
            ...all("article svg text").filter(leaves).map((one) => `leaves its drawing: ${name(one)}`),
            ...shown("article *").filter((one) => says(one) && !one.closest("math") && letters(one) < 9.95)
                .map((one) => `small: ${name(one)}`),
            ...shown("article :is(.arithmatex, pre > code, .table-frame)")
                .filter((one) => isWide(one) && !shaded(one)).map((one) => `cut: ${name(one)}`),
        ]
    }

    // How a page is laid out, its folds closed.
    const layout = () => {
        const top = (one) => (one ? box(one).top + scrollY : Infinity)
        const lines = (one) => one.textContent.split("\n").filter((line) => line.trim())
        const isShort = (one) => one.matches("p") || one.textContent.startsWith("In short")
        const listings = shown("article pre")
        const height = document.documentElement.scrollHeight
        const drawn = shown("article :is(figure, svg.drawing, .chart svg, #calculator .bars)")
        return {
            height,
            answer: top(shown("article :is(p.in-short, h2)").find(isShort)),
            picture: top(drawn[0]),
            drawn: drawn.length,
            long: listings.filter((one) => lines(one).length > 25).map(name),
            code: listings.reduce((sum, one) => sum + one.clientHeight, 0) / height,
            listings: listings.length,
            wide: listings.map((one) => one.querySelector("code") ?? one)
                .filter((one) => one.scrollWidth > one.clientWidth + 1).length,
        }
    }

    // A page's first figure opens at its last step, which its caption tells of.
    const opening = () => {
        const frames = [...(document.querySelector("article figure")?.querySelectorAll(".wide .frame") ?? [])]
        const seen = frames.map((one) => getComputedStyle(one).display !== "none")
        return seen.slice(0, -1).includes(true) || seen.at(-1) === false ? ["its first figure opens too early"] : []
    }

    // Each figure fills its column, and its words can be read.
    const figures = () => shown("article figure :is(svg, img)").flatMap((one) => {
        const column = one.closest("figure").parentElement
        const style = getComputedStyle(column)
        const room = column.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight)
        const small = [...one.querySelectorAll("text")].filter((word) => letters(word) < 9.95)
        return [
            ...(box(one).width < 0.9 * room ? [`narrow figure: ${one.getAttribute("aria-label") ?? one.src}`] : []),
            ...small.map((word) => `small in a figure: ${name(word)}`),
        ]
    })

    const rowsOpen = () => tables().map((table) => [
        label(table), [...table.tBodies[0].rows].filter((row) => row.checkVisibility()).length,
    ])

    // Open tables are numbered and say what they show; captions are numbered in order.
    const captions = () => {
        const frames = shown(".table-frame").filter((one) => !one.closest("#explorer, #calculator"))
        const unnamed = frames.map((one) => one.getAttribute("aria-label"))
            .filter((told) => !/^Table\s\d+\. \w/.test(told))
        const ids = all("p.caption[id], summary[id^=table]").map((one) => one.id)
        return [
            ...unnamed.map((told) => `a table without a number: ${told}`),
            ...all("article > p.caption:not([id])").map((one) => `a caption without one: ${name(one)}`),
            ...ids.filter((id, i) => id !== `table-${i + 1}`).map((id) => `out of order: ${id}`),
        ]
    }

    // A table is shown whole on a desk, or is so wide that it is seen to go on.
    const cutNarrowly = () => tables().flatMap((table) => {
        const frame = table.closest(".table-frame")
        const hidden = frame.scrollWidth - frame.clientWidth
        return 0 < hidden && hidden < 40 ? [`${label(table)} is cut by ${hidden} pixels`] : []
    })

    // No word stands by syllables, no line is taller than a third of the screen.
    const squeezed = () => tables().filter((table) => {
        const lines = [...table.tBodies[0].rows]
        const long = lines.flatMap((line) => [...line.cells])
            .filter((cell) => cell.checkVisibility() && cell.textContent.trim().length > 30)
        return lines.some((line) => box(line).height > 300) || box(table.tHead).height > 160
            || long.some((cell) => box(cell).width < 100)
    }).map((table) => `squeezed: ${label(table)}`)

    // The words of neighbouring cells stand apart.
    const touching = () => shown("article table.data").flatMap((table) => {
        const close = (row) => {
            const ends = [...row.cells].map(wordBoxes).map((boxes) => boxes.length && [
                Math.min(...boxes.map((at) => at.left)), Math.max(...boxes.map((at) => at.right)),
            ])
            return ends.slice(1).some((at, i) => at && ends[i] && at[0] - ends[i][1] < 10)
        }
        return [...table.rows].filter(close).slice(0, 1).map((row) => `cells touch: ${row.innerText}`)
    })

    // Words of the explorer's chart that cover each other.
    const covering = () => {
        const words = all("#explorer svg text").map((one) => [name(one), box(one)])
        const cover = (one, other) => one.left < other.right && other.left < one.right
            && one.top < other.bottom - 1 && other.top < one.bottom - 1
        return words.flatMap(([a, one], i) => words.slice(i + 1)
            .flatMap(([b, other]) => (cover(one, other) ? [`covers: ${a}, ${b}`] : [])))
    }

    // Words that are broken in two, where no name of the code is.
    const broken = () => {
        const found = []
        for (const [text] of texts("svg, math, pre, code, .provenance"))
            for (const word of text.data.matchAll(/[\p{L}\d_]{3,}/gu)) {
                const at = document.createRange()
                at.setStart(text, word.index)
                at.setEnd(text, word.index + word[0].length)
                const boxes = [...at.getClientRects()].filter((one) => one.width > 0)
                if (new Set(boxes.map((one) => Math.round(one.top))).size > 1) found.push(`broken: ${word[0]}`)
            }
        return found
    }

    // A command that goes on below goes on further in, and no option is broken.
    const commands = () => {
        const isFlat = (code) => {
            const boxes = wordBoxes(code)
            const left = Math.min(...boxes.map((one) => one.left))
            const starts = boxes.filter((one) => one.left < left + 10).map((one) => Math.round(one.top))
            return new Set(starts).size > code.textContent.trimEnd().split("\n").length
        }
        const blocks = all("article .language-console")
        return [
            ...shown("article .language-console code").filter(isFlat).map((one) => `goes on at its start: ${name(one)}`),
            ...blocks.filter((one) => !one.querySelector(".gp")).map((one) => `no command: ${name(one)}`),
            ...all(".option").filter((one) => one.getClientRects().length > 1).map((one) => `broken: ${name(one)}`),
        ]
    }

    // Words of the glossary that their first place in the prose does not explain.
    const unexplained = (words) => {
        const skipped = "h1, h2, h3, h4, code, pre, a, summary, details, figure, table, button, label, svg, math,"
            + ".provenance, .tag, .stale, .status, .below, .all, .terms, #explorer, #calculator"
        const pattern = new RegExp(`\\b(?:${Object.keys(words).join("|")})\\b`, "g")
        const [seen, found] = [new Set(), []]
        for (const [text, within] of texts(skipped))
            for (const [form] of text.data.matchAll(pattern)) {
                if (seen.has(words[form])) continue
                seen.add(words[form])
                if (!within.closest("abbr")) found.push(`${form} is not explained in: ${text.data.trim()}`)
            }
        return found
    }

    // The sentences of a page, and all that it shows once its folds are open.
    const prose = () => ({
        shown: document.querySelector("article").innerText,
        texts: all("article :is(p, li, figcaption, dd)")
            .filter((one) => !one.querySelector("p, li, table") && !one.closest(".provenance, .status"))
            .map((one) => one.textContent),
    })

    // How much of each kind there was to look at.
    const counts = () => Object.fromEntries([
        "figure svg text", "svg.drawing", ".wide .frame", "table.data td", ".language-console .gp", ".option",
        "math", "abbr", "pre > code", "p.in-short",
    ].map((kind) => [kind, all(`article ${kind}`).length]))

    return {
        broken, captions, commands, counts, covering, cutNarrowly, figures, fits, layout, markFirst, openFolds,
        opening, prose, rowsOpen, squeezed, touching, unexplained,
    }
})()
