/** The model of this page. */
import { Gpt } from "../model/gpt";
import { decodeBase64, unpackTensors, type Payload } from "../model/payload";
import { makeTokenizer, type Tokenizer } from "../model/tokenizer";

export interface Loaded {
  payload: Payload;
  model: Gpt;
  tokenizer: Tokenizer;
}

export function loadModel(page: Document): Loaded {
  const payload = JSON.parse(page.getElementById("model")!.textContent!) as Payload;
  const weights = page.getElementById("weights")!;
  const tensors = unpackTensors(payload.tensors, decodeBase64(weights.textContent!));
  weights.remove(); // a few megabytes of text that nobody needs again
  return { payload, model: new Gpt(payload, tensors), tokenizer: makeTokenizer(payload) };
}
