// Search from file://.
//
// A browser refuses to start a Worker from a file, so the theme's search would be dead in a downloaded copy. This class has
// the part of Worker's interface that the theme uses, and runs the same script in a hidden frame instead. The worker script
// listens for "message" on its global object and answers with the global postMessage; inside a frame that is the
// frame's window, so messages are dispatched there by hand and its postMessage is pointed back at us.
if (location.protocol === "file:") {
  window.Worker = window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      const script = document.createElement("script")
      script.src = new URL(url, document.baseURI).href
      frame.srcdoc = script.outerHTML
      frame.hidden = true
      frame.title = "Search"
      // Messages sent before the script has loaded wait for this promise, in order.
      this.inside = new Promise((resolve) => {
        frame.addEventListener("load", () => {
          frame.contentWindow.postMessage = (data) => this.dispatchEvent(new MessageEvent("message", { data }))
          resolve(frame.contentWindow)
        })
      })
      document.body.append(frame)
      this.frame = frame
    }

    postMessage(data) {
      this.inside.then((inside) => inside.dispatchEvent(new MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
}

// The search reads colons, quotation marks and the like as operators, so it finds nothing for `memory:`, `--quick` or "out of
// memory": send it the words alone. Its queries are messages of type 2.
{
  const send = Worker.prototype.postMessage
  Worker.prototype.postMessage = function (message) {
    const isQuery = message.type === 2 && typeof message.data === "string"
    send.call(this, isQuery ? { ...message, data: message.data.replace(/[":?~]|\^(?!\d)|(?<=^|\s)-+/g, " ") } : message)
  }
}
