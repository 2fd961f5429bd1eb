/** Answers of `normscope.studio.views.lab`. */
export interface ClaimSummary {
  number: number;
  name: string;
  kind: string;
  statement: string;
  status: "supported" | "contradicted" | "inconclusive" | "withdrawn" | null;
  verdict: string | null;
  outdated: boolean;
  damaged: string | null;
  running: boolean;
}

export interface Claim extends ClaimSummary {
  source: string;
  design: string;
  rule: string;
  facts: string;
  paragraphs: string[];
  answers: { question: string; interval: string; verdict: string }[];
  charts: string[];
}

export interface JobProgress {
  status: "running" | "done" | "stopped" | "failed";
  output: string;
}
