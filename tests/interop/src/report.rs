//! What has come of it: the table, for people and for programs.

use std::fmt::Write;
use std::fs;
use std::path::Path;

use serde_json::json;

use crate::Res;

/// One line of the table.
pub(crate) struct Line {
    pub(crate) kernel: String,
    pub(crate) port: &'static str,
    pub(crate) cell: String,
    /// Why not.
    pub(crate) failure: Option<String>,
    pub(crate) messages: usize,
    pub(crate) packets: u64,
    pub(crate) dropped: u64,
    pub(crate) overtaken: u64,
    pub(crate) again: u64,
    pub(crate) millis: u128,
}

/// The whole run.
#[derive(Default)]
pub(crate) struct Report {
    pub(crate) lines: Vec<Line>,
    /// Cells that were not run, and why.
    pub(crate) left_out: Vec<(String, usize)>,
    pub(crate) notes: Vec<String>,
}

impl Report {
    pub(crate) fn failed(&self) -> usize {
        self.lines.iter().filter(|line| line.failure.is_some()).count()
    }

    pub(crate) fn passed(&self) -> usize {
        self.lines.len() - self.failed()
    }

    /// A table of one line for each cell.
    pub(crate) fn table(&self) -> String {
        let mut out = String::from(
            "| kernel | port | cell | verdict | messages | packets | lost | overtaken | sent again | ms |\n\
             |---|---|---|---|---:|---:|---:|---:|---:|---:|\n",
        );
        for l in &self.lines {
            let verdict =
                l.failure.as_deref().map_or("passed".into(), |why| format!("FAILED: {why}"));
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {} | {} | {} | {} | {} | {} |",
                l.kernel,
                l.port,
                l.cell,
                verdict.replace('|', "/"),
                l.messages,
                l.packets,
                l.dropped,
                l.overtaken,
                l.again,
                l.millis
            );
        }
        out
    }

    /// What was run, what was not, and the verdict, which is the last line.
    pub(crate) fn summary(&self) -> String {
        let mut out = String::new();
        for note in &self.notes {
            let _ = writeln!(out, "{note}");
        }
        for (why, count) in &self.left_out {
            let _ = writeln!(out, "left out by design: {count} cells: {why}");
        }
        let _ = writeln!(out, "{} passed, {} failed", self.passed(), self.failed());
        out
    }

    /// Writes `report.md` and `report.json`.
    pub(crate) fn save(&self, dir: &Path) -> Res<()> {
        let lines: Vec<_> = self
            .lines
            .iter()
            .map(|l| {
                json!({
                    "kernel": l.kernel, "port": l.port, "cell": l.cell, "failure": l.failure, "messages": l.messages,
                    "packets": l.packets, "lost": l.dropped, "overtaken": l.overtaken, "sent_again": l.again,
                    "ms": u64::try_from(l.millis).unwrap_or(u64::MAX),
                })
            })
            .collect();
        let all = json!({
            "cells": lines,
            "left_out": self.left_out.iter().map(|(why, n)| json!({ "cells": n, "why": why })).collect::<Vec<_>>(),
            "notes": self.notes, "passed": self.passed(), "failed": self.failed(),
        });
        let text = format!(
            "# Interoperation with rdma_rxe\n\n{}\n```text\n{}```\n",
            self.table(),
            self.summary()
        );
        fs::write(dir.join("report.md"), text).map_err(|e| format!("report.md: {e}"))?;
        fs::write(dir.join("report.json"), format!("{all:#}\n"))
            .map_err(|e| format!("report.json: {e}"))
    }
}
