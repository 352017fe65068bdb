/* SPDX-License-Identifier: Apache-2.0 */
/* stepper.js: shows the steps of the chosen row, once the cursor rests. */

/* Returns why a row has no steps, or null. A sink takes a part of each weight. A value by itself
 * has another norm than the sum, and no place to be rotated to. */
function refuseSteps({ model, mask }, head, numKeys) {
  if (head === "mean")
    return "Choose one head: the mean of the heads has no scores.";
  if (model.sinks)
    return "Steps are not shown for layers with sinks.";
  if (model.out_norm || model.rope?.values)
    return "Steps are not shown for layers that norm the heads' outputs or rotate values.";
  if (mask.isOfAxes)
    return "Steps are not shown for positions of three axes.";
  return numKeys <= STEPS_KEYS_MAX ? null
    : `This row has ${formatCount(numKeys)} keys; steps are shown for up to ${STEPS_KEYS_MAX}.`;
}

async function measureSteps() {
  const { run } = page, head = shownHead(), b = shownSequence(), r = fitCell(state).row, signal = beginTask("steps");
  if (b !== state.sequence || r !== state.row)
    return; /* a link has changed the state, and its run is under way */
  const refusal = !run.model.capture && refuseSteps(run, head, run.sequences[b].numKeys);
  page.measured = null;
  if (run.model.capture)
    return; /* captured queries have no layer that could be asked */
  if (refusal) {
    byId("steps").replaceChildren();
    byId("step-text").textContent = refusal;
    drawSteps();
    showWhatIf();
    return;
  }
  try {
    const row = { run, b, r, weights: weightsOf(run, b, head), head };
    row.measured = await measureRow(run, b, r, head, signal);
    row.columns = describeColumns(row);
    page.measured = row;
    drawSteps();
    await showWhatIf();
    if (run.toSteps) {
      byId("steps-title").closest("section").scrollIntoView();
      byId("what-table").scrollIntoView({ block: "nearest" });
    }
    run.toSteps = false;
  } catch (error) {
    if (error.name === "AbortError")
      return;
    byId("steps").replaceChildren();
    byId("step-text").textContent = `The steps of this row cannot be measured: ${error.message}`;
    showWhatIf();
  }
}

const measureSoon = debounce(200, measureSteps);

function drawSteps() {
  const row = page.measured, step = state.step;
  byId("step-name").textContent = `${step + 1} of ${STEPS.length}: ${STEPS[step].name}`;
  byId("step-back").disabled = step === 0;
  byId("step-on").disabled = step === STEPS.length - 1;
  if (page.run)
    byId("layer-drawing").replaceChildren(makeDrawing(page.run.model, shownHead(), step, byId("layer-drawing").clientWidth));
  if (!row)
    return;
  const { rows, numKeys, counts, isEmpty } = row.run.sequences[row.b];
  byId("step-text").textContent = explainStep(step, { ...row, query: row.run.queryLabels[rows[row.r]],
    limit: counts[row.r], isEmpty: isEmpty(row.r), numKeys });
  byId("steps").classList.toggle("whole", numKeys <= STEPS_KEYS_WHOLE);
  byId("steps").replaceChildren(makeSteps(step, row));
}

function moveStep(by) {
  state.step = Math.max(0, Math.min(STEPS.length - 1, state.step + by));
  drawSteps();
  keepState();
}
