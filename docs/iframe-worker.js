// Lets the search work where a browser reads the pages from files: browsers start no worker from a file. An iframe runs the
// worker's script instead. mkdocs' offline plugin would load such a shim from the network.
if (location.protocol === "file:") {
  window.IFrameWorker = class extends EventTarget {
    constructor(url) {
      super()
      const frame = document.createElement("iframe")
      frame.hidden = true
      document.body.append(frame)
      const inside = frame.contentWindow
      // Firefox replaces a frame's first document later unless one is written.
      inside.document.open()
      inside.document.write("<!doctype html><body></body>")
      inside.document.close()
      inside.postMessage = data => this.dispatchEvent(new MessageEvent("message", { data }))
      const load = address => new Promise((resolve, reject) => {
        const script = inside.document.createElement("script")
        script.src = address
        script.onload = resolve
        script.onerror = reject
        inside.document.body.append(script)
      })
      inside.importScripts = (...addresses) => addresses.reduce((before, one) => before.then(() => load(one)), Promise.resolve())
      this.frame = frame
      this.loaded = load(url)
    }

    postMessage(data) {
      const inside = this.frame.contentWindow
      this.loaded.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })))
    }

    terminate() {
      this.frame.remove()
    }
  }
  window.Worker = window.IFrameWorker
}
