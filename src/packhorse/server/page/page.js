"use strict";
(() => {
  const POLL_MS = 1000, SPARK_SECONDS = 60, RATE_SECONDS = 3, WINDOW_SECONDS = 10, MOST_BARS = 12;

  const WORDS = {
    en: {
      skip: "Skip to the try-it box", tryTitle: "Try it", pairLabel: "Second text",
      addPair: "Add a second text", dropPair: "One text only",
      keyTitle: "API key", keyLabel: "Key", keyHint: "Kept in this page’s memory only; gone when you reload.",
      commandTitle: "The same as a command", liveTitle: "Throughput", textsRate: "texts/s", axisFrom: "60 s ago",
      axisTo: "now", requestsRate: "requests/s", tokensRate: "tokens/s", total: "texts since the start",
      latencyTitle: "Latency", latencyHint: "From body to answer, over the last 10 s with requests; read from histogram buckets.",
      batchTitle: "Batch", batchUnit: "texts each", paddingTitle: "Padding",
      paddingHint: "Of all tokens computed, those that only fill a batch up to a prepared size.",
      queueTitle: "Queue", queueUnit: "texts wait", memoryTitle: "Memory", linksLabel: "Other routes",
      ready: "Ready", away: "No answer from the server", needsKey: "The numbers need an API key",
      light: "Light", dark: "Dark", themeTo: (name) => `Theme: ${name}`, peak: (n) => `peak ${n}`,
      fill: (tokens, share) => `${tokens} tokens each${share ? `, ${share} of the largest batch` : ""}`,
      inFlight: (n, connections) => `${n} in flight, ${connections} connections`,
      ofMemory: (total) => `of ${total} on the GPU`, engineMemory: "resident, engine processes",
      maxInput: (n) => `up to ${n} tokens`, tokenizer: (name) => `tokenizer ${name}`,
      times: (total, tokens, cut) => `${total} ms on the server, ${tokens} tokens${cut ? ", cut to fit" : ""}`,
      nothing: "Nothing found.", empty: "Write something first.", failed: "The server could not be reached.",
      more: (n) => `and ${n} more labels`, moreTokens: (n) => `and ${n} more tokens`, error: (status, text) => `${status}: ${text}`,
      dimensions: (n) => `${n} numbers a text. The first line beside the others, by cosine:`,
      oneVector: (n) => `${n} numbers. The first of them:`,
      tasks: {
        classify: { name: "classifies texts", send: "Classify", text: "Text", hint: "The model gives a score for each of its labels.", sample: "This product is amazing and I love it!" },
        token_classify: { name: "finds entities", send: "Find entities", text: "Text", hint: "The model marks the parts of a text that it has a label for.", sample: "Ada Lovelace met Charles Babbage in London." },
        rerank: { name: "ranks documents", send: "Rank", text: "Documents, one a line", query: "Query", hint: "The model scores how well each document answers the query.", sample: "The Eiffel Tower is 330 metres tall.\nIt rained all day in Paris.\nBread is baked from flour and water.", ask: "How tall is the Eiffel Tower?" },
        embed_sparse: { name: "embeds texts sparsely", send: "Embed", text: "Texts, one a line", hint: "The model gives weights to tokens of its vocabulary; the heaviest are shown.", sample: "A good film.\nI liked the movie." },
        fill_mask: { name: "fills masks", send: "Fill", text: "Text with [MASK], or what the model calls its mask", hint: "The model gives the likeliest tokens in the place of each mask.", sample: "The film was [MASK]." },
        embed: { name: "embeds texts", send: "Embed", text: "Texts, one a line", hint: "The model turns each text into a vector; near vectors mean alike.", sample: "A good film.\nI liked the movie.\nIt rained all day." },
      },
    },
    zh: {
      skip: "跳到试用区", tryTitle: "试一试", pairLabel: "第二段文本", addPair: "添加第二段文本", dropPair: "只用一段文本",
      keyTitle: "API 密钥", keyLabel: "密钥", keyHint: "只保存在本页内存中，刷新后即消失。",
      commandTitle: "等价的命令", liveTitle: "吞吐量", textsRate: "条/秒", axisFrom: "60 秒前",
      axisTo: "现在", requestsRate: "请求/秒", tokensRate: "token/秒", total: "启动以来的文本数",
      latencyTitle: "延迟", latencyHint: "从收到正文到给出响应；取最近有请求的 10 秒，由直方图的桶估算。",
      batchTitle: "批次", batchUnit: "条/批", paddingTitle: "填充",
      paddingHint: "计算的 token 中，仅用于凑满预备批次大小的比例。",
      queueTitle: "队列", queueUnit: "条等待", memoryTitle: "内存", linksLabel: "其他路由",
      ready: "就绪", away: "服务没有响应", needsKey: "查看数据需要 API 密钥",
      light: "浅色", dark: "深色", themeTo: (name) => `主题：${name}`, peak: (n) => `峰值 ${n}`,
      fill: (tokens, share) => `每批 ${tokens} 个 token${share ? `，为上限的 ${share}` : ""}`,
      inFlight: (n, connections) => `${n} 条处理中，${connections} 个连接`,
      ofMemory: (total) => `GPU 共 ${total}`, engineMemory: "引擎进程的常驻内存",
      maxInput: (n) => `最长 ${n} 个 token`, tokenizer: (name) => `分词器 ${name}`,
      times: (total, tokens, cut) => `服务端用时 ${total} 毫秒，${tokens} 个 token${cut ? "，已截断" : ""}`,
      nothing: "没有找到。", empty: "请先输入内容。", failed: "无法连接到服务。",
      more: (n) => `另有 ${n} 个标签`, moreTokens: (n) => `另有 ${n} 个 token`, error: (status, text) => `${status}：${text}`,
      dimensions: (n) => `每条文本 ${n} 个数。第一行与其余各行的余弦相似度：`,
      oneVector: (n) => `共 ${n} 个数，前几个为：`,
      tasks: {
        classify: { name: "文本分类", send: "分类", text: "文本", hint: "模型为每个标签给出分数。", sample: "This product is amazing and I love it!" },
        token_classify: { name: "实体识别", send: "识别实体", text: "文本", hint: "模型标出文本中它有标签的部分。", sample: "Ada Lovelace met Charles Babbage in London." },
        rerank: { name: "文档排序", send: "排序", text: "文档，每行一篇", query: "查询", hint: "模型给每篇文档打分，看它多大程度上回答了查询。", sample: "The Eiffel Tower is 330 metres tall.\nIt rained all day in Paris.\nBread is baked from flour and water.", ask: "How tall is the Eiffel Tower?" },
        embed_sparse: { name: "稀疏向量", send: "计算向量", text: "文本，每行一条", hint: "模型为词表中的 token 给出权重，这里列出最大的几个。", sample: "A good film.\nI liked the movie." },
        fill_mask: { name: "完形填空", send: "填空", text: "含 [MASK]（或模型自己的掩码 token）的文本", hint: "模型给出每个掩码处最可能的 token。", sample: "The film was [MASK]." },
        embed: { name: "文本向量", send: "计算向量", text: "文本，每行一条", hint: "模型把每条文本变成向量，意思相近的向量也相近。", sample: "A good film.\nI liked the movie.\nIt rained all day." },
      },
    },
  };

  const at = (id) => document.getElementById(id);
  const root = document.documentElement;
  const state = { language: "en", model: null, key: "", history: [], fault: undefined, busy: false, sample: "", last: null };
  const words = () => WORDS[state.language];
  const task = () => words().tasks[state.model ? state.model.task : "classify"];

  // Choices are remembered where the browser lets us; the key never is.
  const remembered = (name) => { try { return localStorage.getItem(`packhorse.${name}`); } catch { return null; } };
  const remember = (name, value) => { try { localStorage.setItem(`packhorse.${name}`, value); } catch { /* private mode */ } };

  const number = (value, digits = 0) => new Intl.NumberFormat(state.language, { maximumFractionDigits: digits, minimumFractionDigits: digits }).format(value);
  const rate = (value) => number(value, value > 0 && value < 10 ? 1 : 0);
  const percent = (share) => `${number(share * 100, share > 0 && share < 0.1 ? 1 : 0)}%`;
  const milliseconds = (seconds) => { const ms = seconds * 1000; return `${number(ms, ms < 10 ? 2 : ms < 100 ? 1 : 0)} ms`; };
  const bytes = (value) => (value >= 1e9 ? `${number(value / 1e9, 1)} GB` : `${number(value / 1e6)} MB`);
  const score = (value) => (value >= 0 && value <= 1 ? `${number(value * 100, 2)}%` : number(value, 4));

  function element(name, attributes = {}, ...children) {
    const made = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
    made.append(...children);
    return made;
  }

  // ---- language and theme

  function speak() {
    root.lang = state.language === "zh" ? "zh-CN" : "en";
    const other = at("language");
    other.textContent = state.language === "zh" ? "English" : "中文";
    other.lang = state.language === "zh" ? "en" : "zh-CN";
    for (const each of document.querySelectorAll("[data-text]")) each.textContent = words()[each.dataset.text];
    for (const each of document.querySelectorAll("[data-label]")) each.setAttribute("aria-label", words()[each.dataset.label]);
    sayTheme();
    sayTask();
    sayState();
    showNumbers();
    if (state.last) showAnswer(state.last);
  }

  const isDark = () => root.dataset.theme === "dark" || (root.dataset.theme === "auto" && matchMedia("(prefers-color-scheme: dark)").matches);
  const sayTheme = () => { at("theme").textContent = words()[isDark() ? "light" : "dark"]; at("theme").setAttribute("aria-label", words().themeTo(at("theme").textContent)); };

  function sayTask() {
    const its = task(), name = state.model ? state.model.task : "classify";
    at("try-hint").textContent = its.hint;
    at("text-label").textContent = its.text;
    at("send").textContent = its.send;
    at("query-field").hidden = name !== "rerank";
    at("query-label").textContent = its.query || "";
    at("pair-toggle").hidden = name !== "classify";
    at("pair-toggle").textContent = at("pair-field").hidden ? words().addPair : words().dropPair;
    if (state.model && at("text").value === state.sample) {
      at("text").value = state.sample = its.sample;
      if (name === "rerank" && !at("query").value) at("query").value = its.ask;
    }
    if (!state.model) return;
    const { device, dtype, tokenizer, max_input_length: longest, version } = state.model;
    at("facts").replaceChildren(...[its.name, device, dtype, words().tokenizer(tokenizer), words().maxInput(number(longest))].filter(Boolean).map((fact) => element("li", {}, fact)));
    at("model-name").textContent = state.model.name;
    at("version").textContent = `Packhorse ${version}`;
    document.title = `${state.model.name} · Packhorse`;
  }

  function sayState() {
    if (state.fault === undefined) return;
    const text = state.fault === null ? words().ready : words()[state.fault] || state.fault;
    at("state").dataset.state = state.fault === null ? "ready" : "fault";
    if (at("state-text").textContent !== text) at("state-text").textContent = text; // announced only when it changes
  }

  // ---- the live numbers: differences between two answers of /stats

  async function poll() {
    if (!document.hidden) {
      try {
        const answer = await fetch("stats", { headers: authorization(), cache: "no-store", signal: AbortSignal.timeout(5000) });
        if (answer.status === 401) askForKey();
        else if (!answer.ok) state.fault = "away";
        else take(await answer.json());
      } catch {
        state.fault = "away";
      }
      sayState();
    }
    setTimeout(poll, POLL_MS);
  }

  function askForKey() {
    state.fault = "needsKey";
    at("key-box").open = true;
  }

  function take(stats) {
    const last = state.history.at(-1);
    if (last && (stats.counters.requests < last.counters.requests || stats.counters.batches < last.counters.batches)) state.history = []; // another server
    state.history = state.history.filter((each) => each.time > stats.time - SPARK_SECONDS - 2 && each.time < stats.time);
    state.history.push(stats);
    state.fault = stats.model.fault;
    const isNew = JSON.stringify(stats.model) !== JSON.stringify(state.model);
    state.model = stats.model;
    if (isNew) sayTask();
    showNumbers();
  }

  /** The newest answer and the one that is about so many seconds older; null while there are not two. */
  function between(seconds) {
    const now = state.history.at(-1);
    if (state.history.length < 2) return null;
    const before = state.history.findLast((each) => each.time <= now.time - seconds + 0.5) || state.history[0];
    return before === now ? null : { now, before, seconds: now.time - before.time };
  }

  const grown = ({ now, before }, name) => now.counters[name] - before.counters[name];

  /** The value below which this share of the requests lies, in seconds; linear within a bucket. */
  function quantile(share, bounds, counts) {
    const wanted = share * counts.reduce((sum, count) => sum + count, 0);
    let sum = 0;
    for (let place = 0; place < counts.length; place++) {
      if (counts[place] && sum + counts[place] >= wanted) {
        if (place === bounds.length) return bounds.at(-1);
        const low = place ? bounds[place - 1] : 0;
        return low + (bounds[place] - low) * ((wanted - sum) / counts[place]);
      }
      sum += counts[place];
    }
    return 0;
  }

  function showNumbers() {
    const now = state.history.at(-1);
    if (!now) return;
    at("texts-total").textContent = number(now.counters.sequences);
    at("queued").textContent = number(now.gauges.queued_sequences);
    at("queue-text").textContent = words().inFlight(number(now.gauges.inputs_in_flight), number(now.gauges.connections));
    showMemory(now.memory_bytes);
    const recent = between(RATE_SECONDS);
    for (const [id, name] of [["texts-rate", "sequences"], ["requests-rate", "requests"], ["tokens-rate", "tokens"]]) {
      at(id).textContent = recent ? rate(grown(recent, name) / recent.seconds) : "–";
    }
    showSpark();
    const window = between(WINDOW_SECONDS);
    if (!window) return;
    if (grown(window, "requests") > 0) {
      const counts = window.now.latency.counts.map((count, place) => count - window.before.latency.counts[place]);
      for (const [id, share] of [["p50", 0.5], ["p95", 0.95], ["p99", 0.99]]) at(id).textContent = milliseconds(quantile(share, now.latency.bounds_seconds, counts));
    }
    const batches = grown(window, "batches");
    if (batches > 0) showBatch(batches, grown(window, "batch_sequences"), grown(window, "batch_tokens"), grown(window, "padding_tokens"));
  }

  function showBatch(batches, sequences, tokens, padding) {
    const most = state.model.max_batch_tokens, share = most ? tokens / batches / most : 0;
    at("batch-texts").textContent = number(sequences / batches, sequences / batches < 100 ? 1 : 0);
    at("fill-text").textContent = words().fill(number(tokens / batches), share ? percent(share) : "");
    at("fill-bar").style.width = `${Math.min(share, 1) * 100}%`;
    const filler = padding / (padding + tokens || 1);
    at("padding").textContent = percent(filler);
    at("padding-bar").style.width = `${filler * 100}%`;
  }

  function showMemory({ used, total, process }) {
    const isGpu = total > 0;
    at("memory").textContent = isGpu ? bytes(used) : process ? bytes(process) : "–";
    at("memory-text").textContent = isGpu ? words().ofMemory(bytes(total)) : words().engineMemory;
    at("memory-meter").hidden = !isGpu;
    if (isGpu) at("memory-bar").style.width = `${(used / total) * 100}%`;
  }

  function showSpark() {
    const now = state.history.at(-1).time, points = [];
    for (let place = 1; place < state.history.length; place++) {
      const pair = { now: state.history[place], before: state.history[place - 1] };
      points.push([pair.now.time, grown(pair, "sequences") / (pair.now.time - pair.before.time)]);
    }
    const peak = Math.max(0, ...points.map(([, value]) => value));
    at("spark-peak").textContent = peak ? words().peak(rate(peak)) : "";
    const drawn = points.map(([time, value]) => `${(600 * (1 - (now - time) / SPARK_SECONDS)).toFixed(1)},${(94 - 88 * (value / (peak || 1))).toFixed(1)}`);
    at("spark-line").setAttribute("d", drawn.length > 1 ? `M${drawn.join("L")}` : "");
    const first = drawn.length > 1 ? drawn[0].split(",")[0] : 0;
    at("spark-area").setAttribute("d", drawn.length > 1 ? `M${first},96L${drawn.join("L")}L600,96Z` : "");
  }

  // ---- asking

  const authorization = () => (state.key ? { authorization: `Bearer ${state.key}` } : {});
  const linesOf = (text) => text.split("\n").map((line) => line.trim()).filter(Boolean);

  /** Path and body for the loaded task, or null where there is nothing to ask. */
  function question() {
    const text = at("text").value, lines = linesOf(text), pair = at("pair").value, query = at("query").value.trim();
    if (!lines.length) return null;
    switch (state.model.task) {
      case "token_classify": return { path: "v1/token_classify", body: { inputs: text } };
      case "fill_mask": return { path: "v1/fill_mask", body: { inputs: text } };
      case "rerank": return query ? { path: "rerank", body: { query, texts: lines } } : null;
      case "embed": return { path: "embed", body: { inputs: lines } };
      case "embed_sparse": return { path: "embed_sparse", body: { inputs: lines } };
      default: return { path: "predict", body: { inputs: !at("pair-field").hidden && pair.trim() ? [text, pair] : text } };
    }
  }

  async function submit(event) {
    event.preventDefault();
    if (state.busy || !state.model) return;
    const asked = question();
    if (!asked) return fail(words().empty);
    state.busy = true;
    at("send").setAttribute("aria-disabled", "true");
    try {
      const answer = await fetch(asked.path, { method: "POST", headers: { "content-type": "application/json", ...authorization() }, body: JSON.stringify(asked.body) });
      const body = await answer.json();
      if (answer.status === 401) at("key-box").open = true;
      if (!answer.ok) return fail(words().error(answer.status, body.error || body.message || ""));
      at("error").hidden = true;
      const names = state.model.task === "embed_sparse" ? await tokensOf(body) : null;
      state.last = { task: state.model.task, asked: asked.body, body, headers: answer.headers, names };
      showAnswer(state.last);
      showCommand(asked);
    } catch {
      fail(words().failed);
    } finally {
      state.busy = false;
      at("send").removeAttribute("aria-disabled");
    }
  }

  const heaviest = (weights) => [...weights].sort((a, b) => b.value - a.value).slice(0, MOST_BARS);

  /** The tokens of the ids that are shown, by id; none where the tokenizer does not know one. */
  async function tokensOf(body) {
    const ids = [...new Set(body.flatMap((each) => heaviest(each).map(({ index }) => index)))];
    if (!ids.length) return new Map();
    const asked = { ids: ids.map((id) => [id]), skip_special_tokens: false };
    const answer = await fetch("decode", { method: "POST", headers: { "content-type": "application/json", ...authorization() }, body: JSON.stringify(asked) });
    if (!answer.ok) return new Map();
    const texts = await answer.json();
    return new Map(ids.map((id, place) => [id, texts[place].trim()]));
  }

  function fail(message) {
    state.last = null;
    at("result").replaceChildren();
    at("error").textContent = message;
    at("error").hidden = false;
  }

  function showAnswer({ task: name, asked, body, headers, names }) {
    const parts = { classify: labels, token_classify: entities, rerank: documents, embed: vectors, embed_sparse: weights, fill_mask: fills }[name](body, asked, names);
    const cut = Number(headers.get("x-truncated") || 0);
    parts.push(element("p", { class: "times" }, words().times(number(Number(headers.get("x-total-time")), 1), number(Number(headers.get("x-compute-tokens"))), cut)));
    at("result").replaceChildren(...parts);
  }

  /** A list of names with their values as bars; widths are shares of 1, or of the largest beyond it. */
  function bars(rows, said = score) {
    const most = Math.max(1, ...rows.map(([, value]) => Math.abs(value)));
    return element("ul", { class: "bars", role: "list" }, ...rows.map(([name, value]) => {
      const bar = element("div");
      bar.style.width = `${(Math.max(0, value) / most) * 100}%`;
      return element("li", {}, element("span", { class: "name" }, name), element("span", { class: "value" }, said(value)), element("div", { class: "track", "aria-hidden": "true" }, bar));
    }));
  }

  function labels(body) {
    const parts = [bars(body.slice(0, MOST_BARS).map((each) => [each.label, each.score]))];
    if (body.length > MOST_BARS) parts.push(element("p", { class: "hint" }, words().more(body.length - MOST_BARS)));
    return parts;
  }

  function documents(body, asked) {
    return [bars(body.map((each) => [asked.texts[each.index], each.score]))];
  }

  function fills(body) {
    const [masks] = body.data;
    return masks.map((mask) => bars(mask.map((each) => [each.token_str, each.score])));
  }

  function entities(body, asked) {
    const [found] = body.data;
    if (!found.length) return [element("p", {}, words().nothing)];
    const letters = Array.from(asked.inputs); // places are code points, not UTF-16
    const kinds = [...new Set(found.map((each) => each.label))];
    const text = element("p", { class: "marked" });
    let end = 0;
    for (const each of found) {
      const kind = each.label;
      const mark = element("mark", { title: score(each.score) }, letters.slice(each.start, each.end).join(""), element("small", {}, kind));
      mark.style.setProperty("--hue", String((kinds.indexOf(kind) * 137 + 30) % 360));
      text.append(letters.slice(end, each.start).join(""), mark);
      end = each.end;
    }
    text.append(letters.slice(end).join(""));
    return [text];
  }

  function weights(body, asked, names) {
    return body.flatMap((each, place) => {
      const rows = heaviest(each).map(({ index, value }) => [names.get(index) || String(index), value]);
      const parts = [element("p", { class: "weighed" }, asked.inputs[place]), rows.length ? bars(rows, (value) => number(value, 3)) : element("p", { class: "hint" }, words().nothing)];
      if (each.length > MOST_BARS) parts.push(element("p", { class: "hint" }, words().moreTokens(each.length - MOST_BARS)));
      return parts;
    });
  }

  function vectors(body, asked) {
    const [first, ...others] = body;
    if (!others.length) return [element("p", {}, words().oneVector(first.length)), element("pre", { tabindex: "0" }, first.slice(0, 16).map((value) => value.toFixed(4)).join("  ") + " …")];
    const length = (vector) => Math.hypot(...vector);
    const cosine = (vector) => vector.reduce((sum, value, place) => sum + value * first[place], 0) / (length(vector) * length(first) || 1);
    const rows = others.map((vector, place) => [asked.inputs[place + 1], cosine(vector)]).sort((a, b) => b[1] - a[1]);
    return [element("p", { class: "hint" }, words().dimensions(first.length)), bars(rows)];
  }

  function showCommand({ path, body }) {
    const quoted = JSON.stringify(body).replaceAll("'", "'\\''");
    const key = state.key ? ` \\\n  -H "authorization: Bearer $API_KEY"` : "";
    at("command").textContent = `curl -s ${new URL(path, location.href)} \\\n  -H 'content-type: application/json'${key} \\\n  -d '${quoted}'`;
    at("command-box").hidden = false;
  }

  // ---- start

  at("form").addEventListener("submit", submit);
  at("form").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) at("form").requestSubmit();
  });
  at("key").addEventListener("input", () => { state.key = at("key").value.trim(); });
  at("pair-toggle").addEventListener("click", () => {
    const isHidden = (at("pair-field").hidden = !at("pair-field").hidden);
    at("pair-toggle").setAttribute("aria-expanded", String(!isHidden));
    sayTask();
    if (!isHidden) at("pair").focus();
  });
  at("language").addEventListener("click", () => {
    state.language = state.language === "zh" ? "en" : "zh";
    remember("language", state.language);
    speak();
  });
  at("theme").addEventListener("click", () => {
    root.dataset.theme = isDark() ? "light" : "dark";
    remember("theme", root.dataset.theme);
    sayTheme();
  });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", sayTheme);

  const theme = remembered("theme"), chosen = remembered("language");
  if (theme === "light" || theme === "dark") root.dataset.theme = theme;
  state.language = chosen in WORDS ? chosen : navigator.language.toLowerCase().startsWith("zh") ? "zh" : "en";
  speak();
  poll();
})();
