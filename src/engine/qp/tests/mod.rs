//! Packet scripts: one file for each topic. What a script is, and how to read one, stands in [`script`].

mod acks;
mod duplicates;
mod nak;
mod psn;
mod reads;
mod responses;
mod script;
mod sequence;
mod states;
