-- Sealed Secrets (kind 7). Their bodies arrive sealed: the clear part, and a member `sealed` with the id of the
-- key, a keyed digest of the contents, and the contents themselves, which nothing in here can read.
--
-- What the store promises of them stands below the write path, where no program can pass it by: nothing
-- unsealed gets into the log (and so nothing into the heads, which are written in the same transaction), and
-- neither history nor tombstones keep a body.

-- The seal of a body, as JSON: key, digest, payload.
create function horchestra.seal_of(body bytea) returns jsonb
language sql immutable parallel safe as $$ select convert_from(body, 'UTF8')::jsonb -> 'sealed' $$;

-- Which key each Secret is sealed with, and the digest by which its contents compare: equal digests of one
-- Secret are equal contents. Follows the log, under the ordering lock like everything that is written there.
create table horchestra.seals (
    uid    uuid primary key,
    rv     bigint not null,
    ns     text   collate "C" not null,
    name   text   collate "C" not null,
    key_id text   collate "C" not null,
    digest bytea  not null
);
create index seals_key on horchestra.seals (key_id);

create function horchestra.note_seal() returns trigger
language plpgsql as $$
declare
    seal jsonb;
begin
    if new.op = 3 then
        delete from horchestra.seals s where s.uid = new.uid;
        return new;
    end if;
    begin
        seal := horchestra.seal_of(new.body);
    exception when others then
        -- What the parser has to say would quote the body.
        seal := null;
    end;
    if coalesce(seal ->> 'key', '') = '' or seal ->> 'digest' is null or seal ->> 'payload' is null then
        raise exception 'the contents of a Secret must be sealed' using errcode = 'HZ003';
    end if;
    if new.prev_uid is not null then
        delete from horchestra.seals s where s.uid = new.prev_uid;
    end if;
    insert into horchestra.seals as s (uid, rv, ns, name, key_id, digest)
        values (new.uid, new.rv, new.ns, new.name, seal ->> 'key', decode(seal ->> 'digest', 'base64'))
        on conflict (uid) do update set rv = excluded.rv, ns = excluded.ns, name = excluded.name,
            key_id = excluded.key_id, digest = excluded.digest;
    return new;
end $$;

create function horchestra.drop_body() returns trigger
language plpgsql as $$
begin
    new.body := ''::bytea;
    return new;
end $$;

create trigger seal before insert on horchestra.events
    for each row when (new.kind = 7) execute function horchestra.note_seal();
create trigger no_body before insert on horchestra.history
    for each row when (new.kind = 7) execute function horchestra.drop_body();
create trigger no_body before insert on horchestra.tombstones
    for each row when (new.kind = 7) execute function horchestra.drop_body();

-- Puts bodies in the place of others that differ in nothing but their seal. Takes no revision: what the
-- bodies say is the same. A body that is no longer what it was (`was`) is left alone. Places: 1 the head of
-- an object at a revision, 2 the log's row, 3 the state before it in the log's row. Answers how many bodies
-- were replaced.
create function horchestra.reseal(place smallint[], ns_ text[], name_ text[], rv_ bigint[], was bytea[], fresh bytea[])
returns int
language plpgsql volatile as $$
declare
    done int := 0;
    seal jsonb;
    uid_ uuid;
begin
    -- Heads are read under this lock by whoever commits; rows of the log are never written again.
    if 1 = any (place) then
        perform pg_advisory_xact_lock(7239181146252901);
    end if;
    for i in 1 .. coalesce(array_length(place, 1), 0) loop
        if convert_from(was[i], 'UTF8')::jsonb - 'sealed' <> convert_from(fresh[i], 'UTF8')::jsonb - 'sealed' then
            raise exception 'a body may only be sealed anew, not changed' using errcode = 'HZ003';
        end if;
        seal := horchestra.seal_of(fresh[i]);
        if coalesce(seal ->> 'key', '') = '' or seal ->> 'digest' is null or seal ->> 'payload' is null then
            raise exception 'the contents of a Secret must be sealed' using errcode = 'HZ003';
        end if;
        if place[i] = 1 then
            update horchestra.objects o set body = fresh[i]
                where o.kind = 7 and o.ns = ns_[i] and o.name = name_[i] and o.rv = rv_[i] and o.body = was[i]
                returning o.uid into uid_;
            if found then
                done := done + 1;
                update horchestra.seals s set key_id = seal ->> 'key', digest = decode(seal ->> 'digest', 'base64')
                    where s.uid = uid_;
            end if;
        elsif place[i] = 2 then
            update horchestra.events e set body = fresh[i]
                where e.rv = rv_[i] and e.kind = 7 and e.body = was[i];
            if found then
                done := done + 1;
            end if;
        else
            update horchestra.events e set prev_body = fresh[i]
                where e.rv = rv_[i] and e.kind = 7 and e.prev_body = was[i];
            if found then
                done := done + 1;
            end if;
        end if;
    end loop;
    return done;
end $$;
