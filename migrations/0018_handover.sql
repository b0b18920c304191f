-- What a leader that gives its lease up leaves to the next one: what that one would know, had it been there before. Only
-- the very next epoch may take it over; who follows on a leader that died finds nothing of its own.
alter table horchestra.lease_epochs
    add column handover jsonb,
    add column handover_epoch bigint;

-- As release_lease in 0004, with something to leave behind.
create function horchestra.hand_lease_over(name_ text, holder_ uuid, epoch_ bigint, handover_ jsonb) returns void
language plpgsql volatile security definer set search_path = pg_catalog, pg_temp as $$
begin
    perform pg_advisory_xact_lock(7239181146252901);
    update horchestra.lease_epochs y set held = false, handover = handover_, handover_epoch = epoch_
        where y.name = name_ and y.epoch = epoch_ and y.held
          and exists (select 1 from horchestra.leases x where x.name = name_ and x.holder = holder_);
end $$;
