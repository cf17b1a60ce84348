//! Packet scripts: one file for each topic. What a script is, and how to read one, stands in [`script`].

mod acks;
mod annex;
mod duplicates;
mod hostile;
mod nak;
mod notification;
mod partitions;
mod psn;
mod reads;
mod requests;
mod responses;
mod retries;
mod script;
mod sequence;
mod srq;
mod states;
mod strangers;
mod uc;
mod ud;
mod windows;
