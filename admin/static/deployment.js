// The deployment's form: variants with a picker of roles; saved through the API.

import { call } from "./api.js";

const form = document.querySelector("form[data-deployment]");
const variants = form.querySelector("[data-variants]");
const stored = JSON.parse(form.dataset.deployment);
const said = form.querySelector("[data-said]");

const each = (selector, root = form) => [...root.querySelectorAll(selector)];
const field = (root, name) => root.querySelector(`[name="${name}"]`);

// --- what the form says while it is filled in ---

function look() {
  const rows = each("[data-variant]");
  const total = rows.reduce((sum, row) => sum + Number(field(row, "weight").value || 0), 0);
  for (const row of rows) {
    const weight = Number(field(row, "weight").value || 0);
    row.querySelector("[data-share]").textContent = total ? `${Math.round((100 * weight) / total)} %` : "";
    const chosen = each('[name="role"]:checked', row);
    const dead = chosen.length > 0 && chosen.every((box) => box.parentElement.querySelector("[data-state]").dataset.state === "down");
    row.querySelector("[data-dead]").hidden = !dead;
    row.querySelector("[data-remove]").hidden = rows.length === 1;
  }
  for (const label of each("label.chip[data-role]")) {
    label.className = `chip ${label.querySelector("[data-state]").dataset.state}`;
  }
}

function addRole(row) {
  const other = field(row, "other");
  const role = other.value.trim();
  if (!role) return;
  let box = each('[name="role"]', row).find((each) => each.value === role);
  if (!box) {
    const label = document.getElementById("role-choice").content.firstElementChild.cloneNode(true);
    label.querySelector("b").textContent = role;
    box = label.querySelector("input");
    box.value = role;
    row.querySelector(".options").insertBefore(label, row.querySelector(".other"));
  }
  box.checked = true;
  other.value = "";
}

form.addEventListener("input", look);
form.addEventListener("keydown", (event) => {
  if (event.key === "Enter" && event.target.name === "other") {
    event.preventDefault();
    addRole(event.target.closest("[data-variant]"));
    look();
  }
});
form.addEventListener("click", (event) => {
  const row = event.target.closest("[data-variant]");
  if (event.target.closest("[data-add-role]")) addRole(row);
  else if (event.target.closest("[data-remove]")) row.remove();
  else if (event.target.closest("[data-add-variant]")) {
    variants.append(document.getElementById("variant").content.firstElementChild.cloneNode(true));
    field(variants.lastElementChild, "label").focus();
  } else if (event.target.closest("[data-delete]")) remove();
  else return;
  look();
});
document.addEventListener("refreshed", look);

// --- what is sent ---

function variantOf(row) {
  const known = JSON.parse(row.dataset.variant);
  const version = field(row, "versionId").value.trim();
  const { versionId: _, ...rest } = known;
  return {
    ...rest,
    label: field(row, "label").value.trim(),
    flowId: field(row, "flowId").value.trim(),
    ...(version ? { versionId: version } : {}),
    weight: Number(field(row, "weight").value),
    targetRoles: each('[name="role"]:checked', row).map((box) => box.value),
  };
}

function show(list, texts) {
  list.replaceChildren(...texts.map((text) => Object.assign(document.createElement("li"), { textContent: text })));
  list.hidden = texts.length === 0;
}

/** Show each fault beside the variant that it is about, the others at the end of the form. */
function showFaults(faults) {
  const rows = each("[data-variant]");
  const byRow = rows.map(() => []);
  const general = [];
  for (const { at, message, mend } of faults) {
    const text = mend ? `${message}; ${mend}` : message;
    const [, index, rest] = /^\/variants\/(\d+)\/?(.*)$/.exec(at) || [];
    if (index !== undefined && rows[index]) byRow[index].push(`${rest ? `${rest}: ` : ""}${text}`);
    else general.push(at ? `${at.slice(1)}: ${text}` : text);
  }
  rows.forEach((row, index) => show(row.querySelector("[data-faults]"), byRow[index]));
  show(form.querySelector(":scope > [data-faults]"), general);
}

form.addEventListener("submit", async (event) => {
  event.preventDefault();
  each("[data-variant]").forEach(addRole);
  const id = stored.id || field(form, "id").value.trim();
  const body = {
    ...stored,
    name: field(form, "name").value.trim(),
    description: field(form, "description").value,
    stickyBy: field(form, "stickyBy").value.trim(),
    disabled: field(form, "disabled").checked,
    variants: each("[data-variant]").map(variantOf),
  };
  said.textContent = "Saving…";
  try {
    await call("PUT", `${form.dataset.api}/${encodeURIComponent(id)}`, body);
    location.assign(`${form.dataset.page}/${encodeURIComponent(id)}`);
  } catch (problem) {
    said.textContent = "Not saved.";
    showFaults(problem.errors.length ? problem.errors : [{ at: "", message: problem.message }]);
  }
});

async function remove() {
  if (!confirm(`Delete the deployment ${stored.id}? Callers that name it will get 404. Its runs stay.`)) return;
  try {
    await call("DELETE", `${form.dataset.api}/${encodeURIComponent(stored.id)}`);
    location.assign(form.dataset.page);
  } catch (problem) {
    showFaults([{ at: "", message: problem.message }]);
  }
}

look();
