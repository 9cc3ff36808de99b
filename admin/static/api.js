// Calls of Rolecall's API.

/** An error that the API answered (RFC 9457), or that kept it from answering. */
export class Problem extends Error {
  constructor(body) {
    super(body.detail || body.title || "the request failed");
    this.code = body.code;
    this.errors = body.errors || [];
  }
}

/** Send a request with a JSON body and return the JSON of the answer. Throws a Problem. */
export async function call(method, path, body) {
  let response;
  try {
    response = await fetch(path, {
      method,
      headers: body === undefined ? {} : { "Content-Type": "application/json" },
      body: body === undefined ? undefined : JSON.stringify(body),
    });
  } catch {
    throw new Problem({ detail: "the admin app cannot be reached" });
  }
  const text = await response.text();
  let answer = {};
  try {
    answer = text ? JSON.parse(text) : {};
  } catch {
    answer = { detail: `the answer was not JSON (HTTP ${response.status})` };
  }
  if (!response.ok) throw new Problem(answer);
  return answer;
}
