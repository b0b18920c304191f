-- The span of a recorded trace in which a change was made, by the revision of the change. Whoever acts because of
-- the change goes on with that span. `events.trace` names the trace, and has no room for more: an id of a trace takes
-- the whole of a uuid. Only recorded traces have rows here, which is how readers of the log know that a trace is
-- recorded; without export, or for traces that are not sampled, nothing is written. Rows end with the log's.
create table horchestra.spans (
    rv   bigint primary key,
    span bigint not null
);
