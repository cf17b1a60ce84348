//! A station, frame by frame.
